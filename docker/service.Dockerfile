# The service on its own: HTTP, planning, the queue in the database. Build from the repository's root:
#   docker build -f docker/service.Dockerfile -t replaybench-service .
FROM python:3.13-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 replaybench
RUN pip install --no-cache-dir uv==0.13.9

WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --locked --no-dev --no-install-project --extra postgres
COPY service service
COPY worker worker
COPY alembic alembic
RUN uv sync --locked --no-dev --extra postgres

RUN mkdir /data && chown replaybench /data
USER replaybench
ENV PATH=/app/.venv/bin:$PATH REPLAYBENCH_DATA_DIR=/data REPLAYBENCH_HOST=0.0.0.0
VOLUME /data
EXPOSE 8321
CMD ["replaybench", "serve"]
