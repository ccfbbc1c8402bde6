"""windlass: one file says what to run; windlass pins it, runs it anywhere, and can prove afterwards what ran.

    import windlass

    experiment = windlass.Experiment(name="hello", run="python train.py", params={"lr": 0.1})
    print(experiment.plan().plan_hash)
    run = windlass.launch(experiment)
    for line in run.logs(follow=True):
        print(line.text)
    print(run.state, run.outputs["main"])

In a job, and outside of one, `from windlass import report` is what training code calls.
"""

from windlass.core.version import VERSION

__all__ = ["Data", "Env", "Experiment", "Options", "Plan", "Prepared", "Run", "Task", "launch", "load"]

__version__ = VERSION

# Looked up when first used, so that `import windlass` costs nothing; the types are in __init__.pyi. Names as text, for
# the layers below import this package and must not pull in those above.
_HOMES = {
    "Data": "windlass.launcher.data",
    "Env": "windlass.spec",
    "Experiment": "windlass.launcher.api",
    "Options": "windlass.launcher.prepare",
    "Plan": "windlass.plan.plan",
    "Prepared": "windlass.launcher.prepare",
    "Run": "windlass.launcher.run",
    "Task": "windlass.spec",
    "launch": "windlass.launcher.api",
    "load": "windlass.launcher.api",
}
_PACKAGES = frozenset({"cluster", "report", "spec", "train", "tune"})


def __getattr__(name: str) -> object:
    import importlib  # lazy: every job imports this package

    if name in _PACKAGES:
        return importlib.import_module(f"windlass.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__, *_PACKAGES})
