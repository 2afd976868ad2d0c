# One image for every role; docker-compose.yml gives each its command.

# The packages are installed and thinned out in a stage of their own, so that nothing of that is left in the image.
FROM python:3.11.14-slim-bookworm AS packages

# Where pip finds torch besides its own index, whose torch brings CUDA: see "The image" in docs/run-at-a-hospital.md.
ARG TORCH_INDEX
# What of pyproject.toml's extras it has besides, such as dicom.
ARG EXTRAS

RUN apt-get update && apt-get install --yes --no-install-recommends binutils
RUN python -m venv --without-pip /opt/packages
WORKDIR /app
COPY pyproject.toml constraints.txt ./
# An empty package stands for the app, whose code comes below: to change that installs no dependency again.
RUN mkdir edelweiss && touch edelweiss/__init__.py
# Neither simulations (ray) nor installations (uv) happen here, and nobody runs the packages' tests, compiles against
# them, fetches data from a cloud (Arrow's flight and s3) or debugs their C++ (symbols: 130 MB).
RUN pip --python /opt/packages/bin/python install --no-cache-dir --no-compile ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c constraints.txt -e ".${EXTRAS:+[$EXTRAS]}" \
 && pip --python /opt/packages/bin/python uninstall --yes ray uv \
 && cd /opt/packages/lib/python*/site-packages \
 && find . \( -name test -o -name tests -o -path '*/torch/include' -o -path '*/torch/bin/*[Tt]est*' -o -path '*/torch/bin/protoc*' \
        -o -path '*/pyarrow/include' -o -path '*/pyarrow/*_flight*' -o -path '*/pyarrow/*s3*' \) -prune -exec rm -r {} + \
 && strip --strip-unneeded torch/lib/libtorch_cpu.so torch/lib/libtorch_python.so pyarrow/*.so* uvloop/*.so fontTools/*/*.so

FROM python:3.11.14-slim-bookworm

ENV PATH=/opt/packages/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    FLWR_HOME=/tmp/flower \
    # Everything is in the image; nothing is downloaded, and nothing reported, at run time.
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_TELEMETRY_ENABLED=0 \
    # For the SuperLink: memory of large messages is kept for the next, where glibc would give it back each time.
    MALLOC_MMAP_THRESHOLD_=1073741824 \
    MALLOC_TRIM_THRESHOLD_=1073741824 \
    MALLOC_TOP_PAD_=67108864

# Dependencies first: their layer survives a change of the app.
COPY --from=packages /opt/packages /opt/packages
WORKDIR /app

# The code is here for `edelweiss submit`, which bundles it, and for executor and sites, which run it.
# One run in this process shows that it works, and leaves the bytecode of what is used, and of nothing else.
COPY . .
RUN edelweiss --run-config 'rounds=1 runs-dir="/tmp/runs"' \
 && for command in flwr flower-superlink edelweiss-executor; do $command --help >/dev/null || exit 1; done \
 && find /tmp -mindepth 1 -delete

# Volumes take these folders' mode on first use: whoever compose makes the user can write.
RUN install -d -m 1777 /state /page /results
ENV PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /results
