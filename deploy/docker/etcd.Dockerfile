# etcd from Debian, so that nothing but Debian and PyPI has to be reached. Where registries are, use etcd's own image
# instead; docker-compose.yml configures both by environment:
#   docker pull quay.io/coreos/etcd:v3.5.21 && docker tag quay.io/coreos/etcd:v3.5.21 hetrdzv-etcd
# (as root then, unless the services get a `user` and their volumes belong to it).

FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends 'etcd-server=3.4.23-*' 'etcd-client=3.4.23-*' \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10002 members \
 && useradd --uid 10002 --gid 10002 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin member \
 && install --directory --owner member --group members --mode 0700 /etcd-data
ENV ETCD_DATA_DIR=/etcd-data
USER 10002:10002
EXPOSE 2379 2380
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s CMD ["etcdctl", "endpoint", "health"]
ENTRYPOINT ["etcd"]
