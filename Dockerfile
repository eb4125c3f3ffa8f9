# SPDX-License-Identifier: Apache-2.0
#
# Tessera on Debian 12.
#
#   docker build --target runtime --tag tessera .     the libraries and programs that are needed to run
#   docker build --target build --tag tessera-build . also compilers and headers, to build programs
#   docker build --tag tessera-example . && docker run --rm tessera-example    two clients
FROM debian:12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends \
    cmake \
    dpkg-dev \
    file \
    g++ \
    libabsl-dev \
    libeigen3-dev \
    libgloo-dev \
    libgrpc++-dev \
    libhwy-dev \
    libprotobuf-dev \
    libucx-dev \
    libxxhash-dev \
    make \
    nlohmann-json3-dev \
    pkg-config \
    protobuf-compiler \
    protobuf-compiler-grpc \
    && rm -rf /var/lib/apt/lists/*
COPY . /tessera
RUN cmake -S /tessera -B /build -DCMAKE_INSTALL_PREFIX=/usr \
    && cmake --build /build --parallel "$(nproc)" \
    && cpack --config /build/CPackConfig.cmake -G DEB -B /packages \
    && rm -rf /build /packages/_CPack_Packages \
    && dpkg --install /packages/*.deb
RUN g++ -std=c++20 -O2 -o /usr/local/bin/two_clients /tessera/tests/install/consumer.cc \
    $(pkg-config --cflags --libs tessera)

FROM debian:12-slim AS runtime
COPY --from=build /packages/libtessera0_*.deb /packages/tessera-tools_*.deb /packages/
# UCX joins several hosts, and OpenBLAS makes products faster; Tessera runs without them.
RUN apt-get update && apt-get install --yes --no-install-recommends \
    libopenblas0-serial \
    libucx0 \
    /packages/*.deb \
    && rm -rf /var/lib/apt/lists/* /packages
CMD ["tessera_run", "--help"]

FROM runtime AS example
COPY --from=build /usr/local/bin/two_clients /usr/local/bin/
CMD ["tessera_run", "--clients", "2", "two_clients", "connect"]
