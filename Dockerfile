# Build: docker build -t gptmini .    Use: docker run --rm -v "$PWD:/work" gptmini train my.txt
# .ci/run runs the command of RUN python without Docker and without EXTRAS.
# For the same base in every build, add its digest: FROM python:3.13-trixie@sha256:DIGEST. docker pull prints it.
FROM python:3.13-trixie
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=data,gguf,serve,sweep
ENV PIP_NO_CACHE_DIR=1
WORKDIR /gptmini
COPY pyproject.toml README.md LICENSE ./
COPY gptmini gptmini/
COPY configs configs/
RUN python -m pip install ".${EXTRAS:+[$EXTRAS]}"
RUN useradd --create-home --uid 1000 gptmini && install --directory --owner gptmini /work
USER gptmini
WORKDIR /work
ENTRYPOINT ["gptmini"]
