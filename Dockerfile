# One image for every role; docker-compose.yml gives each its command.
FROM python:3.11.14-slim-bookworm

# Where torch comes from. For NVIDIA GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    FLWR_HOME=/tmp/flower \
    # Everything is in the image; nothing is downloaded, and nothing reported, at run time.
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_TELEMETRY_ENABLED=0

# Dependencies first: their layer survives a change of the app.
WORKDIR /app
COPY pyproject.toml constraints.txt ./
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt .

# The code is here for `flwr run /app`; SuperLink and SuperNodes get it from there, as Flower's bundle.
COPY . .
COPY bin/superlink.toml /etc/flower/config.toml

# Volumes take these folders' mode on first use: whoever compose makes the user can write.
RUN install -d -m 1777 /state /results
USER 1000:1000
WORKDIR /results
