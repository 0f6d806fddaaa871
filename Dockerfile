# CPU:  docker build -t osp . && docker run --rm osp demo
#       docker run --rm -v "$PWD:/data" osp fit photos unsorted --out run
# GPU:  docker build -t osp --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 . && docker run --rm --gpus all osp demo
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /osp
COPY requirements.lock pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0 \
 && pip install --no-cache-dir -c requirements.lock '.[serve,export,heif]' \
 && useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["osp"]
CMD ["--help"]
