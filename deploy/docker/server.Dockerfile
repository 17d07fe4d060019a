# hetserver and hetctl, without torch. From the top of the repository:
#   docker build -f deploy/docker/server.Dockerfile -t hetrdzv-server .

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY rendezvous rendezvous
COPY agent agent
# PIP_CONSTRAINT holds for what builds the wheel, too.
RUN python3 -m venv --without-pip /opt/hetrdzv \
 && PIP_CONSTRAINT=constraints.txt python3 -m pip --python /opt/hetrdzv/bin/python install --no-cache-dir .

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 hetrdzv \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin hetrdzv \
 && install --directory --owner hetrdzv --group hetrdzv --mode 0700 /var/lib/hetrdzv /run/hetrdzv
COPY --from=build /opt/hetrdzv /opt/hetrdzv
COPY deploy/docker/healthcheck.py /opt/hetrdzv/healthcheck.py
# State without --store and the token without --token-file go to /var/lib/hetrdzv.
ENV PATH=/opt/hetrdzv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    XDG_STATE_HOME=/var/lib
USER 10001:10001
EXPOSE 29400
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-I", "/opt/hetrdzv/healthcheck.py", "server"]
ENTRYPOINT ["hetserver"]
CMD ["--host", "0.0.0.0"]
