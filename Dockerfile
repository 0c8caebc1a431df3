# The stack in an image: docker build -t rollyard . && docker run --rm rollyard
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /opt/rollyard
COPY requirements.lock ./
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY services services
COPY resources_servers resources_servers
COPY responses_api_models responses_api_models
COPY agents agents
COPY configs configs
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

ENV PATH=/opt/venv/bin:$PATH
RUN useradd --create-home rollyard && install -d -o rollyard -g rollyard /home/rollyard/results
USER rollyard
WORKDIR /home/rollyard
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["ng_status"]
CMD ["ng_run", "+config_paths=[configs/sokoban_builtin.yaml]"]
