# Build: docker build -t gptmini .    Use: docker run --rm -v "$PWD:/work" gptmini train my.txt
# .ci/run runs the RUN commands without Docker and without EXTRAS.
FROM python:3.13
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=data,gguf,serve,sweep
ENV PIP_NO_CACHE_DIR=1
WORKDIR /gptmini
COPY pyproject.toml README.md LICENSE ./
COPY gptmini gptmini/
COPY configs configs/
RUN python -m pip install ".${EXTRAS:+[$EXTRAS]}"
WORKDIR /work
ENTRYPOINT ["gptmini"]
