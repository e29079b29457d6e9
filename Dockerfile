# Two images: `lab` is the simulator with API, console and the simulated exporters; `training` has PyTorch, the library,
# and the example that trains for real.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS training
ARG TORCH=torch>=2.6
RUN python3 -m pip install --no-cache-dir "$TORCH"
WORKDIR /srv
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY exporter exporter
COPY simulator simulator
COPY docs/runbooks docs/runbooks
COPY prometheus/rules prometheus/rules
RUN python3 -m pip install --no-cache-dir '.[nvml]' && mkdir /sd && chown 65534:65534 /sd
COPY examples examples
USER 65534:65534
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["torchrun"]
CMD ["--nproc-per-node", "4", "examples/train_gpt.py"]

FROM ${PYTHON_IMAGE} AS lab
WORKDIR /srv
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY exporter exporter
COPY simulator simulator
COPY docs/runbooks docs/runbooks
COPY prometheus/rules prometheus/rules
RUN python3 -m pip install --no-cache-dir '.[lab]' && mkdir /state /history /sd && chown 65534:65534 /state /history /sd
USER 65534:65534
ENV PYTHONUNBUFFERED=1
EXPOSE 8000
ENTRYPOINT ["stepscope"]
CMD ["simulate", "--host", "0.0.0.0"]
