"""Transformers, convolutional nets, graph nets, meta-learning and adversaries."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from bench.foreign.chains import language
from bench.foreign.job import ForeignJob, Loss, foreign

MODELS = "torchbenchmark/models/"
UNUSED = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.utils",
    "torchvision.models",
    "pytorch_fid",
    "pytorch_fid.fid_score",
    "pytorch_fid.inception",
)
"""What packages import for other jobs than ours."""
WIDTHS = {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4}


@foreign("transformers", blocks=lambda model: model.transformer.h)
def gpt2(job: ForeignJob) -> Loss:
    """GPT-2 of six layers, with dropout."""
    return language(job, "GPT2", "LMHeadModel", 4, 128, n_embd=128, n_layer=6, n_head=4)


@foreign("transformers", blocks=lambda model: model.model.layers)
def llama(job: ForeignJob) -> Loss:
    """Llama of six layers, with grouped queries."""
    sizes = {**WIDTHS, "intermediate_size": 384, "num_key_value_heads": 2}
    return language(job, "Llama", "ForCausalLM", 4, 128, **sizes)


@foreign("transformers", blocks=lambda model: [*model.encoder.block, *model.decoder.block])
def t5(job: ForeignJob) -> Loss:
    """T5, an encoder and a decoder of four layers."""
    transformers = job.package("transformers")
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 4, "num_heads": 4}
    config = transformers.T5Config(
        vocab_size=512, decoder_start_token_id=0, use_cache=False, **sizes
    )
    model = job.add_module("model", transformers.T5ForConditionalGeneration(config))
    text, labels = job.randint(512, 8, 96), job.randint(512, 8, 48)
    return lambda _: model(input_ids=text, labels=labels).loss


@foreign("transformers")
def swin(job: ForeignJob) -> Loss:
    """A Swin transformer on images of 64 pixels, with stochastic depth."""
    transformers = job.package("transformers")
    sizes = {"image_size": 64, "patch_size": 2, "embed_dim": 32, "depths": [2, 2, 2]}
    config = transformers.SwinConfig(**sizes, num_heads=[2, 4, 8], window_size=4, num_labels=10)
    model = job.add_module("model", transformers.SwinForImageClassification(config))
    images, labels = job.randn(8, 3, 64, 64), job.randint(10, 8)
    return lambda _: model(pixel_values=images, labels=labels).loss


@foreign(
    "vit_pytorch", blocks=lambda model: [each for pair in model.transformer.layers for each in pair]
)
def vit(job: ForeignJob) -> Loss:
    """A vision transformer of six layers, with dropout."""
    sizes = {"dim": 128, "depth": 6, "heads": 4, "mlp_dim": 256, "dropout": 0.1}
    library = job.package("vit_pytorch.vit", UNUSED)
    model = job.add_module(
        "model", library.ViT(image_size=64, patch_size=8, num_classes=10, **sizes)
    )
    images, labels = job.randn(16, 3, 64, 64), job.randint(10, 16)
    return lambda _: F.cross_entropy(model(images), labels)


@foreign("minGRU_pytorch")
def min_gru(job: ForeignJob) -> Loss:
    """A language model of minGRUs, by a parallel scan."""
    library = job.package("minGRU_pytorch.minLM")
    model = job.add_module("model", library.minLM(num_tokens=256, dim=128, depth=6))
    ids = job.randint(256, 8, 129)
    return lambda _: model(ids, return_loss=True)


@foreign("denoising_diffusion_pytorch")
def diffusion_1d(job: ForeignJob) -> Loss:
    """Denoising diffusion of sequences by a U-Net with attention."""
    library = job.package("denoising_diffusion_pytorch.denoising_diffusion_pytorch_1d", UNUSED)
    net = library.Unet1D(dim=24, dim_mults=(1, 2, 4), channels=8)
    model = job.add_module("model", library.GaussianDiffusion1D(net, seq_length=256, timesteps=100))
    x = torch.rand(8, 8, 256)
    return lambda _: model(x)


@foreign("torch_geometric")
def edge_conv(job: ForeignJob) -> Loss:
    """EdgeCNN on a random graph: messages between the ends of 12,000 edges."""
    library = job.package("torch_geometric.nn")
    model = job.add_module("model", library.EdgeCNN(32, 64, 4, 16))
    x, edges, y = job.randn(3000, 32), job.randint(3000, 2, 12000), job.randint(16, 3000)
    return lambda _: F.cross_entropy(model(x, edges), y)


@foreign("higher")
def maml_higher(job: ForeignJob) -> Loss:
    """MAML with higher: five differentiable steps of a small net in each of four tasks."""
    library = job.package("higher")
    layers = [
        layer for i in (1, 32, 32) for layer in (nn.Conv2d(i, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    ]
    model = job.add_module("model", nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5)))
    known, asked = job.randn(4, 25, 1, 28, 28), job.randn(4, 50, 1, 28, 28)
    labels, answers = job.randint(5, 4, 25), job.randint(5, 4, 50)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(_: int) -> Tensor:
        total = torch.zeros(())
        for task in range(4):
            with library.innerloop_ctx(model, inner, copy_initial_weights=False) as (net, steps):
                for _ in range(5):
                    steps.step(F.cross_entropy(net(known[task]), labels[task]))
                total = total + F.cross_entropy(net(asked[task]), answers[task])
        return total

    return loss


@foreign("torchbench")
def maml_functorch(job: ForeignJob) -> Loss:
    """MAML by functorch: five steps in each of four tasks at once."""
    library = job.checkout("torchbenchmark.models.functorch_maml_omniglot")
    layers = []
    for i in (1, 64, 64):
        norm = nn.BatchNorm2d(64, track_running_stats=False)
        layers += [nn.Conv2d(i, 64, 3), norm, nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]
    model = job.add_module("model", nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5)))
    names = [name for name, _ in model.named_parameters()]
    call = lambda values, _, x: functional_call(model, dict(zip(names, values, strict=True)), x)  # noqa: E731
    tasks = job.randn(4, 5, 1, 28, 28), job.randint(5, 4, 5), job.randn(4, 30, 1, 28, 28)
    answers = job.randint(5, 4, 30)

    def loss(_: int) -> Tensor:
        net = tuple(model.parameters()), (), call
        each = lambda *task: library.loss_for_task(net, 5, *task)[0]  # noqa: E731
        return vmap(each)(*tasks, answers).sum()

    return loss


@foreign("torchbench", f"{MODELS}nanogpt", blocks=lambda model: model.transformer.h)
def nanogpt(job: ForeignJob) -> Loss:
    """nanoGPT of six layers."""
    library = job.checkout("model")
    sizes = {"block_size": 128, "vocab_size": 512, "n_layer": 6, "n_head": 4, "n_embd": 128}
    model = job.add_module("model", library.GPT(library.GPTConfig(**sizes, dropout=0.1)))
    ids, labels = job.randint(512, 4, 128), job.randint(512, 4)
    return lambda _: F.cross_entropy(model(ids)[:, -1], labels)


@foreign("torchbench", f"{MODELS}BERT_pytorch/bert_pytorch")
def bert_pytorch(job: ForeignJob) -> Loss:
    """BERT written by hand, both of its tasks."""
    library = job.checkout("model")
    net = library.BERT(512, hidden=128, n_layers=6, attn_heads=4)
    model = job.add_module("model", library.BERTLM(net, 512))
    ids, parts, after = job.randint(511, 8, 96) + 1, job.randint(3, 8, 96), job.randint(2, 8)

    def loss(_: int) -> Tensor:
        follows, words = model(ids, parts)
        return F.nll_loss(follows, after) + F.nll_loss(words.transpose(1, 2), ids)

    return loss


@foreign("torchbench", f"{MODELS}speech_transformer/speech_transformer")
def speech_transformer(job: ForeignJob) -> Loss:
    """Speech to text: an encoder and a decoder over padded sequences of several lengths."""
    library, sizes = job.checkout("transformer"), {"d_model": 128, "d_inner": 256, "n_head": 4}
    heads = {"d_k": 32, "d_v": 32, "n_layers": 4}
    encoder = job.checkout("transformer.encoder").Encoder(80, **heads, **sizes)
    decoder = job.checkout("transformer.decoder").Decoder(
        1, 2, 200, 128, **heads, **sizes, tgt_emb_prj_weight_sharing=True
    )
    model = job.add_module("model", library.transformer.Transformer(encoder, decoder))
    measure = job.checkout("transformer.loss").cal_performance
    lengths = torch.tensor([100, 90, 80, 70, 60, 50, 40, 30])
    sound, text = job.randn(8, 100, 80), job.randint(197, 8, 24) + 3
    text[1::2, 16:] = -1
    return lambda _: measure(*model(sound, lengths, text), smoothing=0.1)[0]


@foreign("torchbench", f"{MODELS}demucs/demucs")
def demucs(job: ForeignJob) -> Loss:
    """Separation of music: convolutions, a bidirectional LSTM, transposed convolutions."""
    net = job.checkout("model").Demucs(channels=16, depth=4)
    model, samples = job.add_module("model", net), net.valid_length(24000)
    sound, sources = job.randn(2, 2, samples), job.randn(2, 4, 2, samples)

    def loss(_: int) -> Tensor:
        found = model(sound)
        return F.l1_loss(found, sources[..., : found.shape[-1]])

    return loss


@foreign("torchbench", f"{MODELS}pytorch_unet/pytorch_unet")
def unet(job: ForeignJob) -> Loss:
    """U-Net with bilinear upsampling, on an image of 64 pixels."""
    model = job.add_module("model", job.checkout("unet").UNet(3, 2))
    job.optimizers["sgd"] = torch.optim.SGD(model.parameters(), lr=1e-3)
    image, mask = job.randn(1, 3, 64, 64), job.randint(2, 1, 64, 64)
    return lambda _: F.cross_entropy(model(image), mask)


@foreign("torchbench", f"{MODELS}pytorch_stargan")
def stargan(job: ForeignJob) -> Loss:
    """StarGAN's generator, there and back, and its discriminator with a gradient penalty."""
    library = job.checkout("model")
    maker = job.add_module("generator", library.Generator(16, 5, 3))
    judge = job.add_module("discriminator", library.Discriminator(64, 16, 5, 4))
    images, labels = job.randn(4, 3, 64, 64), job.randn(4, 5)

    def loss(_: int) -> Tensor:
        fake = maker(images, labels)
        mixed = (images + fake.detach()).div(2).requires_grad_()
        slope = torch.autograd.grad(judge(mixed)[0].sum(), mixed, create_graph=True)[0]
        real, kinds = judge(images)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        again = F.l1_loss(maker(fake, labels), images)
        return penalty - real.mean() + F.mse_loss(kinds, labels) + 10 * again

    return loss


@foreign("torchbench", f"{MODELS}nvidia_deeprecommender/reco_encoder/model")
def deep_recommender(job: ForeignJob) -> Loss:
    """A deep autoencoder of ratings, with dropout, its output fed in again."""
    library = job.checkout("model")
    model = job.add_module(
        "model", library.AutoEncoder([2000, 256, 256, 512], is_constrained=False, dp_drop_prob=0.5)
    )
    ratings = job.randn(256, 2000).relu()

    def loss(_: int) -> Tensor:
        found = model(ratings)
        total, count = library.MSEloss(found, ratings)
        again, _ = library.MSEloss(model(found.detach()), found.detach())
        return (total + again) / count

    return loss
