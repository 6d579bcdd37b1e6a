# The demo, with the embedded engine on the CPU:
#
#   docker build -t holdfast .
#   docker run --rm holdfast                     # the demo: killed five times, and nothing is lost
#   docker run --rm -v "$PWD:/work" -w /work holdfast holdfast run agent.py --tasks tasks.jsonl --run first
#
# Mount the folder of a journal, never the file alone: its log lies beside it.
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/holdfast
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY examples ./examples
COPY scripts/demo.py ./scripts/
# There is no .git here: the version is the builder's to say.
ARG VERSION=0.0.0.dev0
RUN SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" pip install \
      --constraint constraints.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu \
      '.[local]' \
 && useradd --create-home holdfast \
 && chown -R holdfast /opt/holdfast

USER holdfast
CMD ["python", "scripts/demo.py"]
