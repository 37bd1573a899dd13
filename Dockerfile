# punctual in a small image that runs as a plain user: `docker build -t punctual .`, or `make up`.

FROM rust:1.95.0-bookworm AS build
# Kafka's client library is built from its source, with these from the system; it needs OpenSSL.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libssl-dev pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
# What was compiled before is kept between builds, outside of the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/build/target \
    cargo build --locked --release --workspace --bins \
    && cp target/release/punctual target/release/punctual-lab /usr/local/bin/

FROM debian:12.12-slim
# The libraries it was linked to, the authorities it trusts over TLS, and curl to ask it how it is.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local/bin/punctual /usr/local/bin/punctual-lab /usr/local/bin/
USER 10001:10001
# All interfaces inside the container; publishing the port decides who can reach it from outside. Beyond loopback punctual
# starts only with a token: PUNCTUAL__TOKENS__<NAME>__SHA256 and PUNCTUAL__TOKENS__<NAME>__SCOPE.
ENV PUNCTUAL__HTTP__LISTEN=0.0.0.0:7171
EXPOSE 7171
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=6 \
    CMD ["curl", "--fail", "--silent", "--show-error", "--max-time", "3", "http://127.0.0.1:7171/readyz"]
ENTRYPOINT ["punctual"]
CMD ["serve"]
