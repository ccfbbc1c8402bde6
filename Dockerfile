# windlass with all extras, to run experiments in (`env.image`) or to launch them from: `make docker-image`.
#
#   BASE      anything with a shell; its Python is used where it has 3.11 or newer
#   PYTHON    interpreter in it
#   UV        image that holds /uv
#   EXTRAS    of windlass, with commas: all, or for instance data,ray; empty: none
#   INDEX     package index; empty: the one that uv knows
ARG BASE=docker.io/library/python:3.12-slim-bookworm
ARG UV=ghcr.io/astral-sh/uv:0.9

FROM ${UV} AS uv
FROM ${BASE}
ARG PYTHON=python3
ARG INDEX=
COPY --from=uv /uv /usr/local/bin/uv
ENV VIRTUAL_ENV=/opt/windlass UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never PATH=/opt/windlass/bin:$PATH

# What changes seldom comes first: the locked base, then the extras, then windlass itself.
COPY requirements/base.txt requirements/build.txt /src/requirements/
RUN uv venv --python ${PYTHON} ${VIRTUAL_ENV} \
 && uv pip install ${INDEX:+--default-index ${INDEX}} --require-hashes -r /src/requirements/base.txt \
 && uv pip install ${INDEX:+--default-index ${INDEX}} --require-hashes --target /opt/build -r /src/requirements/build.txt

ARG EXTRAS=all
COPY pyproject.toml /src/
RUN if [ -n "${EXTRAS}" ]; then extras= && for each in $(echo "${EXTRAS}" | sed 's/all/aws,beaker,data,keyring,post,ray,train,tune/; s/,/ /g'); do \
      extras="${extras} --extra ${each}"; done \
 && uv pip install ${INDEX:+--default-index ${INDEX}} -c /src/requirements/base.txt -r /src/pyproject.toml ${extras}; fi

COPY LICENSE README.md /src/
COPY docs/errors.toml /src/docs/errors.toml
COPY src /src/src
RUN PYTHONPATH=/opt/build uv pip install --no-deps --no-build-isolation /src && windlass --version

WORKDIR /work
CMD ["windlass", "--help"]
