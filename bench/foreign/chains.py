"""Recurrent nets, solvers and other chains: each step needs the one before."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.foreign.job import ForeignJob, Loss, foreign


@foreign("torch", chain=True)
def stacked_lstm(job: ForeignJob) -> Loss:
    """Two LSTM cells of 256, written out over 64 steps."""
    cells = nn.ModuleList([nn.LSTMCell(256, 256), nn.LSTMCell(256, 256)])
    words, head = nn.Embedding(64, 256), nn.Linear(256, 64)
    job.add_module("model", nn.ModuleList([cells, words, head]))
    ids = job.randint(64, 65, 48)

    def loss(_: int) -> Tensor:
        states = [(torch.zeros(48, 256), torch.zeros(48, 256)) for _ in cells]
        total = torch.zeros(())
        for now, after in pairwise(ids):
            x = words(now)
            for i, cell in enumerate(cells):
                states[i] = cell(x, states[i])
                x = states[i][0]
            total = total + F.cross_entropy(head(x), after)
        return total

    return loss


@foreign("torch", chain=True)
def attending_gru(job: ForeignJob) -> Loss:
    """A GRU cell that attends to all its past states, written out over 48 steps."""
    cell = job.add_module("cell", nn.GRUCell(128, 64))
    x, y = job.randn(48, 96, 64), job.randn(48, 96, 64)

    def loss(_: int) -> Tensor:
        h, past, total = torch.zeros(96, 64), [torch.zeros(96, 64)], torch.zeros(())
        for now, wanted in zip(x, y, strict=True):
            states = torch.stack(past, 1)
            shares = torch.softmax((states @ h.unsqueeze(2)).squeeze(2), 1)
            seen = (shares.unsqueeze(1) @ states).squeeze(1)
            h = cell(torch.cat([now, seen], 1), h)
            past.append(h)
            total = total + F.mse_loss(h, wanted)
        return total

    return loss


def language(job: ForeignJob, kind: str, head: str, batch: int, tokens: int, **config: Any) -> Loss:
    """A language model of transformers, from a configuration of its own."""
    transformers = job.package("transformers")
    settings = getattr(transformers, f"{kind}Config")(vocab_size=512, **config)
    model = job.add_module("model", getattr(transformers, kind + head)(settings))
    ids = job.randint(512, batch, tokens)
    return lambda _: model(input_ids=ids, labels=ids).loss


@foreign("transformers", chain=True)
def rwkv(job: ForeignJob) -> Loss:
    """RWKV, its attention a loop over the tokens."""
    sizes = {"hidden_size": 128, "attention_hidden_size": 128, "num_hidden_layers": 4}
    return language(job, "Rwkv", "ForCausalLM", 8, 64, context_length=64, use_cache=False, **sizes)


@foreign("transformers", chain=True, blocks=lambda model: model.backbone.layers)
def mamba(job: ForeignJob) -> Loss:
    """Mamba, its scan a loop over the tokens."""
    sizes = {"hidden_size": 96, "num_hidden_layers": 4, "state_size": 16}
    return language(job, "Mamba", "ForCausalLM", 4, 64, use_cache=False, **sizes)


@foreign("transformers", chain=True)
def recurrent_gemma(job: ForeignJob) -> Loss:
    """Griffin's blocks, recurrent ones and local attention."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 4, "attention_window_size": 32, "lru_width": 128}
    return language(job, "RecurrentGemma", "ForCausalLM", 4, 96, use_cache=False, **sizes, **heads)


@foreign("transformers", chain=True)
def xlstm(job: ForeignJob) -> Loss:
    """xLSTM, its matrix memory by chunks."""
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_heads": 4, "chunk_size": 16}
    return language(job, "xLSTM", "ForCausalLM", 4, 128, **sizes, mode="train", use_cache=False)


@foreign("mambapy", chain=True, blocks=lambda model: model.layers)
def mambapy(job: ForeignJob) -> Loss:
    """Mamba in plain PyTorch, with the sequential scan."""
    library = job.package("mambapy.mamba")
    config = library.MambaConfig(d_model=64, n_layers=4, pscan=False)
    model = job.add_module("model", library.Mamba(config))
    x = job.randn(8, 65, 64)
    return lambda _: F.mse_loss(model(x[:, :-1]), x[:, 1:])


@foreign("ncps", chain=True)
def liquid(job: ForeignJob) -> Loss:
    """A liquid time-constant network: six unfolds of an ODE for each element of a sequence."""
    library = job.package("ncps.torch")
    model = job.add_module("model", library.LTC(16, 48, batch_first=True))
    x, y = job.randn(16, 48, 16), job.randn(16, 48, 48)
    return lambda _: F.mse_loss(model(x)[0], y)


@foreign("ncps", chain=True)
def closed_form(job: ForeignJob) -> Loss:
    """A closed-form continuous-time network with a memory cell."""
    library = job.package("ncps.torch")
    model = job.add_module("model", library.CfC(32, 128, mixed_memory=True, batch_first=True))
    x, y = job.randn(64, 64, 32), job.randn(64, 64, 128)
    return lambda _: F.mse_loss(model(x)[0], y)


@foreign("torchdiffeq", chain=True)
def neural_ode(job: ForeignJob) -> Loss:
    """A convolutional vector field, solved by Runge-Kutta in 24 steps."""
    library = job.package("torchdiffeq")
    layers = (nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Tanh())
    field = nn.Sequential(*layers, nn.Conv2d(16, 16, 3, padding=1))
    model = job.add_module("model", field)
    x, y, times = job.randn(8, 16, 16, 16), job.randn(8, 16, 16, 16), torch.linspace(0, 1, 25)
    return lambda _: F.mse_loss(
        library.odeint(lambda t, z: model(z), x, times, method="rk4")[-1], y
    )


@foreign("torchcde", chain=True)
def neural_cde(job: ForeignJob) -> Loss:
    """A controlled differential equation along a spline of 48 points."""
    library = job.package("torchcde")
    wide = job.add_module("wide", nn.Sequential(nn.Linear(32, 128), nn.ReLU()))
    deep = job.add_module("deep", nn.Sequential(nn.Linear(128, 32 * 8), nn.Tanh()))
    head = job.add_module("head", nn.Linear(32, 1))
    path = library.hermite_cubic_coefficients_with_backward_differences(job.randn(64, 48, 8))
    y = job.randn(64, 1)

    def loss(_: int) -> Tensor:
        spline = library.CubicSpline(path)
        solver = {"adjoint": False, "method": "rk4", "options": {"step_size": 1.0}}
        field = lambda t, z: deep(wide(z)).view(-1, 32, 8)  # noqa: E731
        z = library.cdeint(spline, field, torch.zeros(64, 32), spline.interval, **solver)
        return F.mse_loss(head(z[:, -1]), y)

    return loss


@foreign("torchsde", chain=True)
def neural_sde(job: ForeignJob) -> Loss:
    """A stochastic differential equation by Euler's method in 100 steps."""
    library = job.package("torchsde")

    class Sde(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = nn.Sequential(nn.Linear(32, 128), nn.Softplus(), nn.Linear(128, 32))
            self.noise = nn.Sequential(nn.Linear(32, 32), nn.Sigmoid())

        def f(self, t: Tensor, z: Tensor) -> Tensor:
            return self.drift(z)

        def g(self, t: Tensor, z: Tensor) -> Tensor:
            return self.noise(z)

    model = job.add_module("model", Sde())
    x, y, times = job.randn(128, 32), job.randn(128, 32), torch.linspace(0, 1, 5)
    paths = library.BrownianInterval(0.0, 1.0, size=(128, 32), entropy=1, dt=0.01)
    return lambda _: F.mse_loss(
        library.sdeint(model, x, times, bm=paths, method="euler", dt=0.01)[-1], y
    )


@foreign("torchdeq", chain=True)
def equilibrium(job: ForeignJob) -> Loss:
    """A deep equilibrium net: Anderson's method, and gradients through the last 12 iterations."""
    library = job.package("torchdeq")
    solve = library.get_deq(f_solver="anderson", f_max_iter=20, f_tol=1e-6, grad=12)
    wide, back, norm = nn.Linear(96, 384), nn.Linear(384, 96), nn.LayerNorm(96)
    job.add_module("model", nn.ModuleList([wide, back, norm]))
    x, y = job.randn(64, 24, 96), job.randn(64, 24, 96)
    field = lambda z: norm(x + back(F.gelu(wide(z))))  # noqa: E731
    return lambda _: F.mse_loss(solve(field, torch.zeros_like(x))[0][-1], y)


@foreign("x_transformers", chain=True)
def transformer_xl(job: ForeignJob) -> Loss:
    """A Transformer-XL: eight segments of 32 tokens, each with the memories of the one before."""
    library = job.package("x_transformers")
    layers = library.Decoder(dim=96, depth=4, heads=4, rel_pos_bias=True)
    net = library.TransformerWrapper(
        num_tokens=256, max_seq_len=32, max_mem_len=64, attn_layers=layers
    )
    model = job.add_module("model", library.XLAutoregressiveWrapper(net))
    ids = job.randint(256, 4, 257)
    return lambda _: model(ids)


@foreign("torch_geometric", chain=True)
def gated_graph(job: ForeignJob) -> Loss:
    """A gated graph net: 24 rounds of messages into a GRU."""
    library = job.package("torch_geometric.nn")
    model = job.add_module("model", library.GatedGraphConv(64, num_layers=24))
    x, y, edges = job.randn(1000, 64), job.randn(1000, 64), job.randint(1000, 2, 4000)
    return lambda _: F.mse_loss(model(x, edges), y)


@foreign("examples", "word_language_model", chain=True)
def word_gru(job: ForeignJob) -> Loss:
    """A language model of two GRU layers; the state goes on into the next step, detached."""
    net = job.checkout("model").RNNModel("GRU", 500, 128, 128, 2, 0.2)
    model = job.add_module("model", net)
    ids, state = job.randint(500, 50 * 48 + 1, 24), [net.init_hidden(24)]

    def loss(i: int) -> Tensor:
        at = i % 50 * 48
        found, hidden = model(ids[at : at + 48], state[0])
        state[0] = hidden.detach()
        return F.nll_loss(found, ids[at + 1 : at + 49].reshape(-1))

    return loss


@foreign("examples", "time_sequence_prediction", chain=True)
def sine_waves(job: ForeignJob) -> Loss:
    """Two LSTM cells written out over 128 values in double precision, trained by L-BFGS."""
    model = job.add_module("model", job.checkout("train").Sequence().double())
    waves = torch.sin(job.randn(64, 1).double() * 4 + torch.arange(129.0) / 20)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(waves[:, :-1]), waves[:, 1:])
        loss.backward()
        return loss

    job.optimizers["lbfgs"] = optimizer
    return lambda _: optimizer.step(closure).detach()


LIBROSA = ("librosa", "librosa.filters", "librosa.util")


@foreign("torchbench", "torchbenchmark/models/tacotron2", chain=True)
def tacotron2(job: ForeignJob) -> Loss:
    """Text to spectra: a recurrent decoder with attention, over 96 frames."""
    sizes: dict[str, Any] = dict.fromkeys(
        ("symbols_embedding_dim", "encoder_embedding_dim", "postnet_embedding_dim"), 64
    )
    sizes |= dict.fromkeys(("decoder_rnn_dim", "attention_rnn_dim"), 128)
    sizes |= {"n_mel_channels": 40, "n_symbols": 100, "prenet_dim": 64, "attention_dim": 64}
    sizes |= {"encoder_kernel_size": 5, "encoder_n_convolutions": 3, "n_frames_per_step": 1}
    sizes |= {"max_decoder_steps": 1000, "gate_threshold": 0.5, "postnet_kernel_size": 5}
    sizes |= {"p_attention_dropout": 0.1, "p_decoder_dropout": 0.1, "postnet_n_convolutions": 5}
    sizes |= {"attention_location_n_filters": 16, "attention_location_kernel_size": 31}
    hparams = SimpleNamespace(**sizes, mask_padding=True, fp16_run=False)
    model = job.add_module("model", job.checkout("model", LIBROSA).Tacotron2(hparams))
    text, mels = job.randint(100, 8, 40), job.randn(8, 40, 96)
    lengths, frames = torch.full((8,), 40), torch.full((8,), 96)
    measure, gates = job.checkout("loss_function").Tacotron2Loss(), torch.zeros(8, 96)
    return lambda _: measure(model((text, lengths, mels, 40, frames)), (mels, gates))


@foreign("torchbench", "torchbenchmark/models/tts_angular", chain=True)
def tts_angular(job: ForeignJob) -> Loss:
    """A speaker encoder of three LSTM layers with projections."""
    library = job.checkout("model")
    model = job.add_module("model", library.SpeakerEncoder(40, 64, 192, 3))
    measure = job.add_module("loss", library.AngleProtoLoss())
    x = job.randn(32, 60, 40)
    return lambda _: measure(model(x).view(8, 4, -1))
