"""A small training program for recordings: a convolutional net and a
transformer layer, batches of changing size, one empty_cache call, and with
--oom a request that cannot be served.

    python allocsim_record.py -o NAME testdata/train.py [--fraction F] [--oom] [--steps N]
"""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--fraction", type=float)
parser.add_argument("--oom", action="store_true")
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()

import torch
from torch import nn

try:
    import allocsim_record

    step = allocsim_record.step
except ImportError:
    step = lambda: None

torch.manual_seed(0)
if args.fraction is not None:
    torch.cuda.set_per_process_memory_fraction(args.fraction)

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, stride=2),
    nn.ReLU(),
    nn.Flatten(2),
).cuda()
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).cuda()
head = nn.Linear(64, 10).cuda()
parameters = [p for m in (model, layer, head) for p in m.parameters()]
optimizer = torch.optim.AdamW(parameters)

for i in range(args.steps):
    batch = (16, 24, 8, 20)[i % 4]
    side = (24, 32, 16, 28)[i % 4]
    x = torch.randn(batch, 3, side, side, device="cuda")
    y = torch.randint(10, (batch,), device="cuda")
    features = layer(model(x).transpose(1, 2))
    loss = nn.functional.cross_entropy(head(features.mean(1)), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if i == 1:
        torch.cuda.empty_cache()
    step()

if args.oom:
    kept = []
    try:
        for _ in range(1000):
            kept.append(torch.empty(24 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as e:
        print(e)
    del kept
torch.cuda.synchronize()
