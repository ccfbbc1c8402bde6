"""Golden outputs: what windlass writes today, so that a change of its inside shows what it changed outside.

    python -m tests.golden.renew            every file again
    python -m tests.golden.renew plans      one of them

Most come from the command line, called in this process at a temporary stage; times, paths, ids, digests and versions are
replaced (`normal.py`). A difference is either a mistake or is named, with its reason, in the change that renews the file.

Cases whose whole output other tests hold already are not repeated here:

    mason.py command lines -> Beaker specs      tests/compat/mason/cases/*.yaml
    gantry command lines -> Beaker specs        tests/compat/gantry/test_command_lines.py
    OLMo-core launches -> Beaker recipes        tests/compat/olmo_core/recipes.json
    Beaker specs as the service gets them       tests/compat/spec/files/sent.json
    public names                                tests/public_surface.txt
    keys of experiment, site and recipe files   docs/reference/*.md
"""
