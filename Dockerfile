# One image for every role; docker-compose.yml gives each its command.
FROM python:3.11.14-slim-bookworm

# Where pip finds torch besides its own index, whose torch brings CUDA: see "The image" in docs/run-at-a-hospital.md.
ARG TORCH_INDEX
# What of pyproject.toml's extras it has besides, such as dicom.
ARG EXTRAS

ENV PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    FLWR_HOME=/tmp/flower \
    # Everything is in the image; nothing is downloaded, and nothing reported, at run time.
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_TELEMETRY_ENABLED=0

# Dependencies first: their layer survives a change of the app. Neither simulations (ray) nor installations (uv) happen
# here, and nobody runs the packages' tests or compiles against them.
WORKDIR /app
COPY pyproject.toml constraints.txt ./
RUN pip install --no-cache-dir --no-compile ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
 && pip uninstall --yes ray uv \
 && find "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
        \( -name test -o -name tests -o -path '*/torch/include' -o -path '*/torch/bin/*[Tt]est*' \) -prune -exec rm -r {} +

# The code is here for `flwr run /app`, which bundles it, and for the sites, which run it.
# One run in this process shows that it works, and leaves the bytecode of what is used, and of nothing else.
COPY . .
RUN python -m server_app --run-config 'rounds=1 runs-dir="/tmp/runs"' \
 && for command in flwr flower-superlink flower-superexec; do $command --help >/dev/null || exit 1; done \
 && find /tmp -mindepth 1 -delete

# Volumes take these folders' mode on first use: whoever compose makes the user can write.
RUN install -d -m 1777 /state /results
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /results
