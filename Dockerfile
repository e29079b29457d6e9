# The simulator: API, console and the simulated exporters.
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE}

WORKDIR /srv
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY exporter exporter
COPY simulator simulator
COPY docs/runbooks docs/runbooks
RUN python3 -m pip install --no-cache-dir '.[lab]' && mkdir /state /history && chown 65534:65534 /state /history
COPY prometheus/rules prometheus/rules

USER 65534:65534
ENV PYTHONUNBUFFERED=1
EXPOSE 8000
ENTRYPOINT ["stepscope"]
CMD ["simulate", "--host", "0.0.0.0"]
