# A GPU worker. It builds the runtimes that it is asked for, so that the image holds no torch: only the driver's
# libraries, which the container toolkit mounts. Build from the repository's root:
#   docker build -f docker/worker.Dockerfile -t replaybench-worker .
FROM python:3.13-slim-bookworm

# A compiler, since some trees build extensions and torch.compile calls one; bubblewrap, which works only where the
# container is allowed to make namespaces (docs/settings.md).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap build-essential git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 replaybench
RUN pip install --no-cache-dir uv==0.13.9

WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --locked --no-dev --no-install-project
COPY service service
COPY worker worker
RUN uv sync --locked --no-dev

RUN mkdir /cache && chown replaybench /cache
USER replaybench
ENV PATH=/app/.venv/bin:$PATH REPLAYBENCH_CACHE_DIR=/cache NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /cache
CMD ["replaybench", "worker"]
