# One seat: the agent and the reference engine, and so torch. A drill brings seats of its own, so it runs from this image too.
#
#   docker build --file deploy/images/seat.Dockerfile --tag emberpool-seat .
#
# PyPI's torch for Linux brings CUDA along. For a smaller image on machines without GPUs name an index of CPU builds:
#   --build-arg PIP_EXTRA_INDEX_URL=…
FROM python:3.12-slim AS build
ARG PIP_EXTRA_INDEX_URL=
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY loader loader
COPY warmpool warmpool
COPY scaler scaler
RUN python -m venv /opt/emberpool \
 && /opt/emberpool/bin/pip install --no-cache-dir --constraint constraints.txt '.[engine,drill]'

FROM python:3.12-slim
RUN useradd --uid 10001 --user-group --no-create-home emberpool \
 && install --directory --owner emberpool --group emberpool /data /targets
COPY --from=build /opt/emberpool /opt/emberpool
ENV PATH=/opt/emberpool/bin:$PATH PYTHONUNBUFFERED=1
USER emberpool
ENTRYPOINT ["emberpool"]
CMD ["agent", "--help"]
