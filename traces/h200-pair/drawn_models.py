"""Networks of plain PyTorch by the keys of a workload, and their steps: what `drawn_steps.py` measures."""

# ruff: noqa

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

RANK, GPUS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}


class Collective(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.kind = backward
        return called(forward, x)

    @staticmethod
    def backward(ctx, dy):
        return called(ctx.kind, dy), None, None


def called(kind, x):
    if kind == "nothing":
        return x
    if kind == "all_reduce":
        x = x.contiguous()
        dist.all_reduce(x)
        return x
    x = x.contiguous()
    if kind == "all_gather":
        y = x.new_empty(x.shape[0] * GPUS, *x.shape[1:])
        dist.all_gather_into_tensor(y, x)
    elif kind == "reduce_scatter":
        y = x.new_empty(x.shape[0] // GPUS, *x.shape[1:])
        dist.reduce_scatter_tensor(y, x)
    else:
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
    return y


def norm_of(k):
    return nn.LayerNorm(k["hidden"]) if k["norm"] == "layer_norm" else nn.RMSNorm(k["hidden"])


class Attention(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k, tp = k, k.get("tensor_parallel", 1)
        self.heads, self.kv, self.d = k["heads"] // tp, k.get("kv_heads", k["heads"]) // tp, k["head_size"]
        bias = k.get("biases", False)
        if k.get("separate_projections", True):
            self.wq = nn.Linear(k["hidden"], self.heads * self.d, bias=bias)
            self.wk = nn.Linear(k["hidden"], self.kv * self.d, bias=bias)
            self.wv = nn.Linear(k["hidden"], self.kv * self.d, bias=bias)
        else:
            self.qkv = nn.Linear(k["hidden"], (self.heads + 2 * self.kv) * self.d, bias=bias)
        self.wo = nn.Linear(self.heads * self.d, k["hidden"], bias=bias)
        self.cache = None

    def forward(self, x, cos, sin):
        k, (a, b) = self.k, x.shape[:2]
        sequence_first = k.get("tensor_parallel", 1) > 1
        if hasattr(self, "qkv"):
            q, key, value = self.qkv(x).split([self.heads * self.d, self.kv * self.d, self.kv * self.d], dim=-1)
        else:
            q, key, value = self.wq(x), self.wk(x), self.wv(x)
        q, key, value = (t.view(a, b, -1, self.d) for t in (q, key, value))
        if k.get("rotary"):
            q, key = rotated(q, cos, sin), rotated(key, cos, sin)
        if self.cache is not None:
            return self.wo(self.decode(q, key, value, a))
        if k.get("repeat_heads", True) and self.kv < self.heads:
            key, value = (t.repeat_interleave(self.heads // self.kv, dim=2) for t in (key, value))
        order = (1, 2, 0, 3) if sequence_first else (0, 2, 1, 3)
        back = (2, 0, 1, 3) if sequence_first else (0, 2, 1, 3)
        q, key, value = (t.permute(order) for t in (q, key, value))
        y = F.scaled_dot_product_attention(q, key, value, is_causal=True, enable_gqa=key.shape[1] < self.heads)
        return self.wo(y.permute(back).reshape(a, b, -1))

    def decode(self, q, key, value, batch):
        keys, values, at = self.cache
        keys.index_copy_(2, at, key.transpose(1, 2))
        values.index_copy_(2, at, value.transpose(1, 2))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, enable_gqa=self.kv < self.heads)
        return y.transpose(1, 2).reshape(batch, 1, -1)


def rotated(x, cos, sin):
    one, two = x.float().chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, k):
        super().__init__()
        width, bias = k["ffn"] // k.get("tensor_parallel", 1), k.get("biases", False)
        self.w1, self.w2 = nn.Linear(k["hidden"], width, bias=bias), nn.Linear(width, k["hidden"], bias=bias)
        self.w3 = nn.Linear(k["hidden"], width, bias=bias) if k["activation"] == "swiglu" else None

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)) if self.w3 is None else F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k, self.ep = k, k.get("expert_parallel", 1)
        local, h, f = k["experts"] // self.ep, k["hidden"], k["expert_ffn"]
        self.router = nn.Linear(h, k["experts"], bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.empty(local, h, f)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(local, f, h))
        tokens = k["sequence"] * k["batch_per_replica"]
        balanced = torch.arange(tokens * k["top_k"]).view(tokens, -1) % k["experts"]
        self.register_buffer("balanced", balanced, persistent=False)

    def forward(self, x):
        k, tokens = self.k, x.flatten(0, 1)
        weights, _ = self.router(tokens).softmax(-1).topk(k["top_k"], dim=-1)
        order = torch.argsort(self.balanced.flatten(), stable=True)
        rows = tokens.repeat_interleave(k["top_k"], dim=0)[order]
        local = k["experts"] // self.ep
        if self.ep > 1:
            rows = Collective.apply(rows, "all_to_all", "all_to_all")
            rows = rows.view(self.ep, local, -1, k["hidden"]).transpose(0, 1).contiguous()
        rows = rows.view(local, -1, k["hidden"])
        y = torch.bmm(F.silu(torch.bmm(rows, self.w1)) * torch.bmm(rows, self.w3), self.w2)
        if self.ep > 1:
            y = y.view(local, self.ep, -1, k["hidden"]).transpose(0, 1).contiguous()
            y = Collective.apply(y.view(-1, k["hidden"]), "all_to_all", "all_to_all")
        y = y.view(-1, k["hidden"])
        y = torch.zeros_like(y).index_copy(0, order, y)
        return (y.view(-1, k["top_k"], k["hidden"]) * weights.unsqueeze(-1)).sum(1).view_as(x)


class Block(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.n1, self.n2 = norm_of(k), norm_of(k)
        self.attention = Attention(k)
        self.mlp = Experts(k) if k["kind"] == "moe" else FeedForward(k)
        self.tp, self.sp = k.get("tensor_parallel", 1) > 1, k.get("sequence_parallel", False)

    def half(self, x, norm, part):
        y = norm(x)
        if self.tp:
            y = Collective.apply(y, *(("all_gather", "reduce_scatter") if self.sp else ("nothing", "all_reduce")))
        y = part(y)
        if self.tp:
            y = Collective.apply(y, *(("reduce_scatter", "all_gather") if self.sp else ("all_reduce", "nothing")))
        return x + y

    def forward(self, x, cos, sin):
        x = self.half(x, self.n1, lambda y: self.attention(y, cos, sin))
        return self.half(x, self.n2, self.mlp)


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        if k["vocabulary"]:
            self.embedding = nn.Embedding(k["vocabulary"], k["hidden"])
            if k.get("positions"):
                self.positions = nn.Embedding(k["positions"], k["hidden"])
            self.norm, self.head = norm_of(k), nn.Linear(k["hidden"], k["vocabulary"], bias=False)
            if k.get("tied_embedding"):
                self.head.weight = self.embedding.weight
        self.blocks = nn.ModuleList(Block(k) for _ in range(k["layers"]))

    def forward(self, x, cos, sin, targets=None):
        k = self.k
        if k["vocabulary"]:
            x = self.embedding(x)
            if k.get("positions"):
                x = x + self.positions(torch.arange(k["sequence"], device="cuda"))
        for block in self.blocks:
            if k.get("recompute") == "full":
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin)
        if not k["vocabulary"]:
            return x
        x = self.norm(x)
        if k.get("mode") == "prefill":
            x = x[:, -1:]
        logits = self.head(x)
        if targets is None:
            return logits
        logits = logits.flatten(0, 1)
        return F.cross_entropy(logits.float() if k["loss"] == "fp32" else logits, targets)


def initialised(model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.02)
    return model


def transformer(k):
    keys = dict(k)
    sharded = k["framework"] == "fsdp2"
    dtype = torch.float32 if sharded else DTYPES[k["dtype"]]
    with torch.device("cuda"):
        torch.set_default_dtype(dtype)
        model = initialised(Model(keys))
        torch.set_default_dtype(torch.float32)
    if sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    tp, mode = k.get("tensor_parallel", 1), k.get("mode", "training")
    batch, seq = k["batch_per_replica"], 1 if mode == "decode" else k["sequence"]
    angles = torch.rand(seq, 1, k["head_size"] // 2, device="cuda") * 6
    if tp > 1:
        angles = angles.view(seq, 1, 1, -1)
    cos, sin = angles.cos(), angles.sin()
    if mode == "decode":
        at = torch.full((1,), k["sequence"] - 1, device="cuda")
        for block in model.blocks:
            a = block.attention
            shape = (batch, a.kv, k["sequence"], a.d)
            a.cache = (
                torch.randn(shape, device="cuda", dtype=dtype),
                torch.randn(shape, device="cuda", dtype=dtype),
                at,
            )
    if k["vocabulary"]:
        x = torch.randint(k["vocabulary"], (batch, seq), device="cuda")
        targets = torch.randint(k["vocabulary"], (batch * seq,), device="cuda")
    else:
        cut = GPUS if k.get("sequence_parallel") else 1
        x = torch.randn(seq // cut, batch, k["hidden"], device="cuda", dtype=dtype)
    if mode != "training":
        model.requires_grad_(False)
        if mode == "prefill":
            return torch.no_grad()(lambda: model(x, cos, sin))
        return graphed(torch.no_grad()(lambda: model(x, cos, sin)))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=1e-6, fused=k["optimizer_kernels"] == "fused", foreach=k["optimizer_kernels"] != "fused"
    )
    network = model
    if k.get("data_parallel", 1) > 1 and not sharded:
        if k["kind"] == "moe":
            own = [n for n, _ in model.named_parameters() if n.endswith(("mlp.w1", "mlp.w2", "mlp.w3"))]
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
        network = nn.parallel.DistributedDataParallel(model, device_ids=[RANK])
    if k.get("compiled"):
        network = torch.compile(model)
    gradient = None if k["vocabulary"] else torch.randn_like(x)
    norms = (
        [p for b in model.blocks for n in (b.n1, b.n2) for p in n.parameters()] if k.get("sequence_parallel") else []
    )

    def step():
        optimizer.zero_grad(set_to_none=True)
        if gradient is None:
            network(x, cos, sin, targets).backward()
        else:
            network(x, cos, sin).backward(gradient)
            for p in norms:
                dist.all_reduce(p.grad)
        optimizer.step()

    return step


def graphed(step):
    torch.cuda.synchronize()  # inputs are made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay():
        graph.replay()
        return kept, step

    return replay


def perceptron(widths):
    parts = []
    for a, b in zip(widths, widths[1:]):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return parts


class Dlrm(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k, dim = k, k["embedding_dim"]
        if "tables" in k:
            self.tables = nn.ModuleList(nn.EmbeddingBag(t["rows"], dim, mode="sum") for t in k["tables"])
            count = len(k["tables"])
        else:
            count = k["tables_per_rank"]
            self.tables = nn.EmbeddingBag(k["rows_per_table"] * count, dim, mode="sum")
        n = count + 1
        width = {"dot": n * (n - 1) // 2 + dim, "cat": n * dim, "sum": dim}[k["interaction"]]
        self.bottom = nn.Sequential(*perceptron([k["dense_features"], *k["bottom_mlp"]]))
        self.top = nn.Sequential(*perceptron([width, *k["top_mlp"]])[:-1])
        rows, columns = torch.tril_indices(n, n, offset=-1)
        self.register_buffer("triangle", rows * n + columns)

    def forward(self, dense, indices):
        k = self.k
        below = self.bottom(dense)
        if "tables" in k:
            pooled = torch.stack([table(i) for table, i in zip(self.tables, indices)], dim=1)
        else:
            pooled = self.tables(indices).view(k["tables_per_rank"], dense.shape[0], -1).transpose(0, 1)
        vectors = torch.cat((below[:, None, :], pooled), dim=1)
        if k["interaction"] == "dot":
            pairs = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.triangle]
            x = torch.cat((below, pairs), dim=1)
        else:
            x = vectors.flatten(1) if k["interaction"] == "cat" else vectors.sum(1)
        return self.top(x)


def dlrm(k):
    with torch.device("cuda"):
        model = Dlrm(k)
    batch = k["global_batch"]
    dense = torch.randn(batch, k["dense_features"], device="cuda")
    if "tables" in k:
        indices = [torch.randint(t["rows"], (batch, t["pooling"]), device="cuda") for t in k["tables"]]
    else:
        tables, rows = k["tables_per_rank"], k["rows_per_table"]
        first = torch.arange(tables, device="cuda").repeat_interleave(batch)[:, None] * rows
        indices = torch.randint(rows, (tables * batch, k["pooling"]), device="cuda") + first
    labels = torch.rand(batch, 1, device="cuda")
    if k["mode"] == "forward":
        return torch.no_grad()(lambda: model(dense, indices))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.binary_cross_entropy_with_logits(model(dense, indices), labels).backward()
        optimizer.step()

    return step


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.c2, self.b2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c3, self.b3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.beside = None
        if stride > 1 or inputs != 4 * width:
            self.beside = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        y = F.relu(self.b2(self.c2(y)))
        y = self.b3(self.c3(y))
        return F.relu(y + (x if self.beside is None else self.beside(x)))


def convolutional(k):
    parts, channels = [], 3
    for layer in k["layers"]:
        c = layer.get("channels")
        if layer["kind"] == "convolution":
            w = layer["window"]
            parts += [nn.Conv2d(channels, c, w, layer["stride"], w // 2, bias=False), nn.BatchNorm2d(c), nn.ReLU()]
            channels = c
        elif layer["kind"] == "bottleneck":
            for b in range(layer["blocks"]):
                parts.append(Bottleneck(channels, c, layer["stride"] if b == 0 else 1))
                channels = 4 * c
        elif layer["kind"] == "pool":
            parts += [nn.MaxPool2d(3, 2, 1)] if "window" in layer else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        else:
            parts.append(nn.Linear(channels, c))
    dtype, batch = DTYPES[k["dtype"]], k["batch_per_replica"]
    model = nn.Sequential(*parts).to("cuda", dtype, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, k["image"], k["image"], device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    labels = torch.randint(k["layers"][-1]["channels"], (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


MAKERS = {"transformer": transformer, "moe": transformer, "dlrm": dlrm, "convolutional": convolutional}
