# Build: docker build -t gptmini .    Use: docker run --rm -v "$PWD:/work" gptmini train data=text data.path=my.txt
# .ci/run runs the RUN commands without Docker.
FROM python:3.13
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1
WORKDIR /gptmini
COPY pyproject.toml README.md LICENSE ./
COPY gptmini gptmini/
COPY configs configs/
RUN python -m pip install '.[data,gguf,serve,sweep]'
WORKDIR /work
ENTRYPOINT ["gptmini"]
