# One image for every part of a run, with the dependencies of all environments. docker-compose.yml starts the parts (see
# docs/operation.md). On its own: docker build -t rollyard . && docker run --rm rollyard
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /opt/rollyard
COPY pyproject.toml ./
COPY requirements requirements
RUN python3 requirements/subset.py aws hub ifeval math zstd >/tmp/requirements.txt \
    && python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r /tmp/requirements.txt
COPY setup.py README.md LICENSE ./
COPY src src
COPY records records
COPY services services
COPY analysis analysis
COPY launchers launchers
COPY training training
COPY cli cli
COPY resources_servers resources_servers
COPY responses_api_models responses_api_models
COPY agents agents
COPY configs configs
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

# Any user of the host may run the container; results belong to that user.
ENV PATH=/opt/venv/bin:$PATH HOME=/home/rollyard
RUN install -d -m 1777 /home/rollyard /home/rollyard/results
# SageMaker's folders below /opt/ml belong to root, so `ng_submit --build` passes RUN_AS=0:0.
ARG RUN_AS=1000:1000
USER ${RUN_AS}
WORKDIR /home/rollyard
CMD ["ng_run", "+config_paths=[configs/sokoban_builtin.yaml]"]
