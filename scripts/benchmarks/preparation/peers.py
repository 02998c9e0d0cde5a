"""Programs that do the same as gptmini with another library; each prints its seconds in its last line."""

TIKTOKEN = """
import sys, time, tiktoken
documents = [text for text in open(sys.argv[1], newline="").read().split(sys.argv[2]) if text]
encoding = tiktoken.get_encoding("gpt2")
encoding.encode_ordinary("")
began = time.perf_counter()
encoding.encode_ordinary_batch(documents, num_threads=int(sys.argv[3]))
print(time.perf_counter() - began)
"""

# Based on nanoGPT's data/openwebtext/prepare.py: datasets.map encodes the documents, and 1,024 batches are written.
NANOGPT = """
import sys, tempfile, time
import datasets, numpy, tiktoken
began = time.perf_counter()
encoding = tiktoken.get_encoding("gpt2")
folder = tempfile.mkdtemp(dir=sys.argv[3])

def process(example):
    ids = encoding.encode_ordinary(example["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}

n = int(sys.argv[2])
dataset = datasets.load_dataset("json", data_files=sys.argv[1], cache_dir=folder, split="train")
tokenized = dataset.map(process, remove_columns=["text"], num_proc=n)
length = numpy.sum(tokenized["len"], dtype=numpy.uint64)
array = numpy.memmap(folder + "/train.bin", dtype=numpy.uint16, mode="w+", shape=(length,))
index = 0
n_shards = min(1024, len(tokenized))
for i in range(n_shards):
    batch = tokenized.shard(num_shards=n_shards, index=i, contiguous=True).with_format("numpy")
    ids = numpy.concatenate(batch["ids"])
    array[index : index + len(ids)] = ids
    index += len(ids)
array.flush()
print(time.perf_counter() - began)
"""
