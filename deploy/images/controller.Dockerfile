# Controller, gateway, agent and node agent: the base install and NVML's bindings, which know no torch.
#
#   docker build --file deploy/images/controller.Dockerfile --tag emberpool-controller .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY loader loader
COPY warmpool warmpool
COPY scaler scaler
RUN python -m venv /opt/emberpool \
 && /opt/emberpool/bin/pip install --no-cache-dir --constraint constraints.txt '.[node]'

FROM python:3.12-slim
RUN useradd --uid 10001 --user-group --no-create-home emberpool \
 && install --directory --owner emberpool --group emberpool /state
COPY --from=build /opt/emberpool /opt/emberpool
ENV PATH=/opt/emberpool/bin:$PATH PYTHONUNBUFFERED=1
USER emberpool
ENTRYPOINT ["emberpool"]
CMD ["--help"]
