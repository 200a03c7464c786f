"""What a software generation makes of the hardware: few constants, each with a physical meaning, fitted on published runs.

Constants of kernels are shared by all generations; a generation has those of its attention, its communication and its overlap.
``tests/bench/plan_validation.py`` prints how far off they are, rows that were fitted and rows that were not apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

HALF_RATE_OUTPUTS = 5.0e6
"""Elements of a product's result at which it runs at half of its rate: the last wave of tiles fills the GPU only in part.
Fitted on llm-foundry (A100, and 8 H100) and fms-fsdp (A100)."""
WAVE_SHARE = 108 * 256 * 128 / 2 / HALF_RATE_OUTPUTS
"""Of that, where the last wave alone costs: half of the elements of one wave of an A100, 108 multiprocessors with tiles of
256 x 128. Counted, not fitted; source as in ``step_parts.product_efficiency``. FSDP's trainers lose more in small micro batches,
which the fit of ``HALF_RATE_OUTPUTS`` holds as well."""
VOLTA_HALF_RATE_OUTPUTS = HALF_RATE_OUTPUTS * (80 * 128 * 128) / (108 * 256 * 128)
"""The same for a V100, by the elements of one wave: 80 multiprocessors with tiles of 128 x 128, where an A100 has 108 with
256 x 128. Source: NVIDIA, Matrix Multiplication Background User's Guide. Counted, not fitted."""
HALF_RATE_DEPTH = 220.0
"""Terms of a sum at which it does so: the start and end of a tile weigh as much as its sum. Fitted with the above."""
UNALIGNED_SHARE = 0.68
"""Rate of products with a side that 64 does not divide. Fitted on BigScience's hidden size of 14,400 against 13,824."""
UNMEASURED_SHARE = 0.85
"""Of the peak, where nobody has published the best matmul of a GPU; an assumption, the A100 reaches 0.87."""
SCORE_BYTES = 13
"""Traffic of one score in a pass of attention that is not fused, 16-bit: written by the product (2), read and written by the
softmax (4) and the dropout with its mask (5), read by the product (2). Counted, not fitted."""
EAGER_SCORE_BYTES = 27
"""The same where each operator is a kernel of its own and the softmax is in fp32 (Hugging Face's own attention, and autocast).
In the forward pass: written by the product (2), scaled (2 + 2), masked (2 + 2), cast (2 + 4), softmax (4 + 4), cast (4 + 2),
dropout with its mask (2 + 2 + 1), read by the product (2), 37 together. In the backward pass, which counts for two: written (2),
dropout (2 + 1 + 2), cast (2 + 4), softmax (4 + 4 + 4), cast (4 + 2), mask (2 + 2), scale (2 + 2), read by three products (6), 45.
Counted, not fitted, in transformers 4.24, models/gpt2/modeling_gpt2.py (_attn)."""
LOSS_BYTES_PER_LOGIT = 20
"""Traffic of one logit in all passes: written in 16 bit (2), cast to fp32 (2 + 4), read by the log-softmax (4), read again in the
backward pass and its gradient written (4 + 4). Counted, not fitted."""
FLASH_2_SHARE = 0.725
"""Of the A100's best measured matmul, by FlashAttention-2 and what PyTorch took over from it, for the scores of a long sequence:
63 % of its peak. Source: arXiv 2307.08691, abstract (50 to 73 % of the peak) and its figure of forward and backward passes with
a causal mask and heads of 128. The first FlashAttention has 25 to 40 % (same place), and in llm-foundry's tables 0.366 of the
best matmul."""
FLASH_2_ROW_COST = 2.75
"""Scores a row, for each TFLOP/s of the rate above, that could be formed in the time which a row takes whatever its length (its
queries, keys, values and result are read and written): half of the rate is reached at 540 tokens on an A100. Source: same
figure; later kernels on faster GPUs keep to it from 8k to 256k tokens (H200 and B200, stas00/ml-engineering,
insights/when-to-upgrade-gpus)."""
UNFUSED_LOSS_BYTES = 54
"""The same where each operator of the loss is a kernel of its own: written (2), cast (2 + 4), largest one (4), subtracted
(4 + 4), exponential (4 + 4), sum (4), divided (4 + 4), gradient scaled (4 + 4) and cast (4 + 2). Counted, not fitted, in
Megatron-LM, core/tensor_parallel/cross_entropy.py; Hugging Face's comes to as much with its shifted copy of the logits."""
EAGER_ELEMENT_TRAFFIC = 3.5
"""Element-wise traffic of Llama's blocks where nothing fuses them (Hugging Face's own, and those of FSDP's trainers that are not
compiled), against once: a norm is eight operators in fp32, rotary positions and the gate three each. Fitted on a 7B model with
FSDP and with ZeRO-3 on 4 A100 (the blog post deepspeed-to-fsdp-and-back)."""
ADAM_BYTES_PER_PARAMETER = 30
"""Master, two moments and gradient read (4 + 8 + 4), master and moments written (4 + 8), 16-bit parameter written (2)."""
UNFUSED_ADAM_BYTES = 120
"""The same under autocast, with fp32 parameters and PyTorch's own Adam: parameter cast for the pass (4 + 2) and its gradient back
(2 + 4), unscaled (4 + 4), its norm (4), clipped (4 + 4), decay (4 + 4), first moment scaled and added to (8 + 12), second one
(8 + 12), its root (8), divided (8), added to (8), step (16). Counted in PyTorch 1.13, optim/adamw.py (_multi_tensor_adamw)."""
HOST_ADAM_BYTES_PER_PARAMETER = 44
"""Of a step on the CPU: gradient read and written by the division by the loss scale (4 + 4), master, two moments and gradient
read (4 + 8 + 4), master and moments written (4 + 8), master read, rounded to 16 bit and sent (4 + 2 + 2). Counted in DeepSpeed
0.19.8, runtime/zero/stage3.py (unscale_and_clip_grads, step)."""
OFFLOADED_GRADIENT_BYTES = 4
"""Over the host link in each micro step: a 16-bit gradient to the host and back again (2 + 2). Counted in DeepSpeed 0.19.8,
runtime/zero/stage3.py, partition_grads."""
BOUNDARY_GRADIENT_BYTES = 4
"""Over the host link once a step: the summed gradient in fp32. Source: as above, _offload_grad_partition_at_boundary."""
GPU_MEMORY_SHARE = 0.8
"""Of the data sheet's bandwidth, for the optimizer's long vectors; an assumption, STREAM reaches 0.85 to 0.9."""
FP8_SHARE = 0.905
"""Of the best measured fp8 matmul, by a block's products: casts, and the factors that scale them. Fitted on DGX Cloud, H100."""
FP8_OVER_16_BIT = 2.0
"""Where nobody has published a GPU's best fp8 matmul, over that of 16 bit; the ratio of the peaks."""


class Sustained(NamedTuple):
    """Rates under load, each against the A100's share of the best measured matmul of its data type."""

    matrix: float = 1.0
    attention: float = 1.0
    fp8: float = 1.0
    """Of a block's products in fp8."""
    half_rate_outputs: float = HALF_RATE_OUTPUTS


_HOPPER = ("H100", "H200", "H800", "H20")
_GRACE_SHARE = 0.74
"""Of an H100's rates, on a GH200 whose CPU shares its power. Fitted on Llama 3.2 3B on 4 GPUs of Alps (swiss-ai/Megatron-LM,
pull request 10)."""
OWN_KERNELS = {
    **dict.fromkeys(_HOPPER, Sustained(0.965, 1.03, 0.965)),
    "GH200": Sustained(0.965 * _GRACE_SHARE, 1.03 * _GRACE_SHARE, 0.965 * _GRACE_SHARE),
    **dict.fromkeys(("B200", "B300"), Sustained(0.63, 0.92, 0.84)),
    **dict.fromkeys(("GB200", "GB300"), Sustained(0.84, 0.92, 0.84)),
}
"""By family, where kernels were made for it (Transformer Engine, attention of cuDNN, FlashAttention-3 and -4), against the A100
with FlashAttention-2. Fitted on DGX Cloud: H100; 405B in 16 bit on 128 and 256 GB200, whose other two rates are taken to fall by
as much. B200, a board with less power, in 16 bit: 0.49 of its peak, the mean of the products that MooreThreads/SimuMax measured
(configs/system/b200_bf16_ceperm.json). B300 and GB300 are taken for the same."""
SUSTAINED = {
    **dict.fromkeys(_HOPPER, Sustained(0.866, 0.62, 0.866)),
    "H100-SXM-96GB": Sustained(0.82, 0.35, 0.82),
    "GH200": Sustained(0.866 * _GRACE_SHARE, 0.62 * _GRACE_SHARE, 0.866 * _GRACE_SHARE),
    **dict.fromkeys(("B200", "B300"), Sustained(0.57, 0.53, 0.75)),
    **dict.fromkeys(("GB200", "GB300"), Sustained(0.75, 0.53, 0.75)),
    **dict.fromkeys(("MI250X", "MI250"), Sustained(0.8, 0.6)),
    "MAX": Sustained(0.5, 0.5),
    "V100": Sustained(0.85, half_rate_outputs=VOLTA_HALF_RATE_OUTPUTS),
    **dict.fromkeys(("T4", "TITANRTX"), Sustained(half_rate_outputs=VOLTA_HALF_RATE_OUTPUTS)),
}
"""By family, with kernels that were made for the A100: power limits bind, and attention kernels of these generations were made
for Ampere. Fitted on llm-foundry, 8 H100; those with 96 GB, which torchtitan's tables have at 500 W, on its 8B at 32k to 262k
tokens; MI250X on two runs on Frontier (175B and 1T, arXiv 2312.12705); Max on 70B on 96 and
192 stacks of Aurora (saforem2/Megatron-DeepSpeed, ALCF/notes), from one micro batch to the next. V100 by its best measured
matmul, 83 of 112 TFLOP/s (arXiv 1803.04014; that this was the PCIe form is an assumption), against the A100's 271 of 312. B200
and GB200 by the same shares of ``OWN_KERNELS``, an assumption; of other families nothing is known, and they are taken to hold
their rate."""


HOST_ADAM = dict.fromkeys((*_HOPPER, "B200", "B300"), 1.9)
"""By family, Adam's rate on the processors of its hosts, as a share of their memory's bandwidth, against those of an A100's:
EPYC of the second and third generation, whose vectors are half as wide as those with AVX-512. Fitted on one row, 8B with the
optimizer on the CPU at 8k tokens on 8 H200 (stas00/ml-engineering, insights/when-to-upgrade-gpus)."""


def sustained_rates(family: str, own_kernels: bool, name: str = "") -> Sustained:
    """Rates under load of a family of GPUs, or of the one card of it that is ``name``; see ``SUSTAINED`` and ``OWN_KERNELS``.

    >>> sustained_rates("H100", False, "H100-SXM-80GB").matrix, sustained_rates("H100", False, "H100-SXM-96GB").matrix
    (0.866, 0.82)
    """
    rates = OWN_KERNELS if own_kernels else SUSTAINED
    return rates.get(name) or rates.get(family, Sustained())


@dataclass(frozen=True)
class Software:
    """Constants of one generation of training software."""

    name: str
    fitted_on: str
    """Sources and rows, and what is taken over from elsewhere."""
    validated_on: str
    """Rows that were not used for fitting; empty: none is published."""
    errors: tuple[float, float]
    """Predicted over measured - 1 on those rows, the lowest and the highest; where there are none, an assumption."""
    matrix_share: float = 1.0
    """Of the best measured matmul, for large products in a long run."""
    half_rate_share: float = 1.0
    """Of the elements of a result at which products run at half of their rate."""
    own_kernels: bool = False
    """Kernels are made for the GPU's family: its rates under load are those of ``OWN_KERNELS``."""
    fused_attention: bool = True
    attention_share: float = 0.366
    """Of the best measured matmul, for the scores that are formed."""
    attention_row_cost: float = 0.0
    """Of fused attention, see ``FLASH_2_ROW_COST``."""
    score_bytes: float = SCORE_BYTES
    """Traffic of one score in a pass of attention that is not fused."""
    element_traffic: float = 1.9
    """Times that each element-wise tensor is read or written, against once."""
    selective_share: float = 0.5
    """Share of a block's products that selective recomputation runs again: half where whole blocks or every other product are
    chosen (FSDP's trainers), none where only attention is (Megatron)."""
    loss_bytes: float = LOSS_BYTES_PER_LOGIT
    """Traffic of one logit in all passes."""
    launch_s_per_block_pass: float = 9e-5
    """Host work of one pass through a block that the GPU waits for."""
    host_s_per_block_pass: float = 0.0
    """Host work of one pass through a block that runs beside the GPU's and counts where it takes longer."""
    link_share: float = 0.75
    """Of the data sheet's bandwidth inside a node."""
    network_share: float = 0.8
    hop_latency_s: float = 5e-6
    """From one member of a ring to the next."""
    collectives_per_block: float = 1.0
    """Gathers that a block's parameters come in (ZeRO-3), and reductions of its gradients where no bucket is stated."""
    model_parallel_overlap: float = 0.0
    """Share of the communication of tensor, sequence and pipeline parallelism that compute hides."""
    zero_overlap: float = 0.75
    """Share of stage 3's communication, up to the length of compute, that compute hides."""
    gradient_overlap: float = 0.0
    """Share of the last backward pass that hides the reduction of gradients below stage 3."""
    gradient_bytes: int = 2
    """Of one gradient as it is reduced."""
    adam_bytes: int = ADAM_BYTES_PER_PARAMETER
    """Traffic of one parameter in a step on the GPU."""
    sequence_parallel: bool = False
    """Norms and residuals are split over tensor ranks (Megatron's sequence parallelism)."""
    balanced_stages: bool = False
    """Pipeline ranks are cut by cost, so that the one with the logits gets fewer blocks."""
    host_overlap: float = 0.5
    """Share of compute that hides traffic to host memory; an assumption."""
    host_memory_share: float = 0.16
    """Of the memory bandwidth of a node, by Adam on the CPU. Read from what DeepSpeed published on 3B and 1.5B on two GPUs of a
    DGX A100 and on 7B on four A100 (blogs/zenflow-corebinding, blogs/deepspeed-zenflow)."""
    input_copy_gb_per_s: float | None = None
    """Of a GPU, for block inputs that wait in host memory, where their copies block and go to new, pageable memory; None: they go
    to pinned memory, beside compute."""


_FSDP_SOURCE = "llm-foundry (A100, and 8 H100) and fms-fsdp (A100)"
_FSDP = Software(
    "fsdp",
    fitted_on=_FSDP_SOURCE,
    validated_on="llm-foundry on 16 to 64 H100 and fms-fsdp on 96 H100",
    errors=(-0.13, 0.02),
)
_FSDP_2022 = replace(
    _FSDP,
    name="fsdp_2022",
    fitted_on="MosaicML's first table of FSDP on A100 (PyTorch 1.13, March 2023): element-wise work in fp32 under autocast, and"
    " the first flash attention; rate of products as deepspeed_2022",
    validated_on="",
    errors=(-0.15, 0.05),
    matrix_share=0.878,
    element_traffic=3.0,
    attention_share=0.3,
)
_FSDP_COMPILED = replace(
    _FSDP,
    name="fsdp_compiled",
    fitted_on=f"{_FSDP_SOURCE}, torch.compile leaving 0.6 of the element-wise traffic",
    validated_on="fms-fsdp on 96 H100 and torchtitan on H100 and H200",
    errors=(-0.13, 0.08),
    attention_share=FLASH_2_SHARE,
    attention_row_cost=FLASH_2_ROW_COST,
    element_traffic=1.14,
)
_MEGATRON_2021 = Software(
    "megatron_2021",
    fitted_on="Megatron-LM SC21, table 1, 1.7B to 39B",
    validated_on="the same table, 76B to 1T",
    errors=(-0.02, 0.03),
    selective_share=0.0,
    fused_attention=False,
    attention_share=0.4,
    element_traffic=0.84,
    loss_bytes=UNFUSED_LOSS_BYTES,
)
_MEGATRON_DEEPSPEED_2022 = replace(
    _MEGATRON_2021,
    name="megatron_deepspeed_2022",
    fitted_on="BigScience, the tables of 2022-02-20 and of the 48-node contenders, kernels as megatron_2021",
    validated_on="BigScience, the later tables",
    errors=(-0.2, 0.16),
    launch_s_per_block_pass=3e-4,
    link_share=0.293,
)
_MEGATRON = Software(
    "megatron",
    fitted_on="nothing of its own, kernels as fsdp, rate of products as deepspeed_2022, their last wave counted, links as"
    " megatron_2021, half of the backward pass assumed to hide gradients",
    matrix_share=0.878,
    half_rate_share=WAVE_SHARE,
    validated_on="nanotron on 8 to 512 H100, recomputation not stated",
    errors=(-0.65, 0.22),
    gradient_overlap=0.5,
    selective_share=0.0,
    sequence_parallel=True,
    loss_bytes=UNFUSED_LOSS_BYTES,
)
_MEGATRON_CORE = replace(
    _MEGATRON,
    name="megatron_core",
    fitted_on="DGX Cloud's recipes of NeMo 24.09 to 24.12 on 8 to 2,304 H100 (bf16 and fp8), links as megatron",
    validated_on="NeMo 24.07 and Megatron-Bridge on H100, B200 and GB200, recomputation not stated",
    errors=(-0.19, 0.41),
    matrix_share=0.92,
    own_kernels=True,
    attention_share=FLASH_2_SHARE,
    attention_row_cost=FLASH_2_ROW_COST,
    element_traffic=1.14,
    loss_bytes=LOSS_BYTES_PER_LOGIT,
    launch_s_per_block_pass=0.0,
    model_parallel_overlap=0.45,
)
_NANOTRON = replace(
    _MEGATRON,
    name="nanotron",
    fitted_on="nothing of its own, as megatron with gradients in fp32 that nothing hides and stages cut by cost",
    gradient_bytes=4,
    gradient_overlap=0.0,
    balanced_stages=True,
)
_DEEPSPEED_2021 = replace(
    _MEGATRON_2021,
    name="deepspeed_2021",
    fitted_on="fixed costs read from Megatron-LM SC21, table 2 (175B and 530B, ZeRO-3 on 384 to 2,240 GPUs)",
    validated_on="BigScience on V100 with ZeRO-3, whose authors warn of 40 % noise by the network",
    errors=(-0.74, -0.07),
    network_share=0.24,
    hop_latency_s=1.6e-5,
    collectives_per_block=4.0,
    zero_overlap=0.0,
    input_copy_gb_per_s=2.0,
)
_DEEPSPEED_2022 = replace(
    _MEGATRON_2021,
    name="deepspeed_2022",
    fitted_on="DeepSpeed on Azure, 175B at 512 tokens, and 1T at micro batch 8 (copies of block inputs), kernels as"
    " megatron_2021",
    validated_on="DeepSpeed on Azure, 175B at 1,024 tokens, 530B, 1T at micro batches of 1 to 4, and 2T",
    errors=(-0.18, 0.06),
    matrix_share=0.878,
    network_share=0.632,
    hop_latency_s=1.16e-5,
    collectives_per_block=4.0,
    zero_overlap=0.309,
    input_copy_gb_per_s=2.0,
)
_DEEPSPEED = replace(
    _FSDP,
    name="deepspeed",
    fitted_on="DeepSpeed's example of low-precision states (host work), kernels as fsdp, rate of products and network as"
    " deepspeed_2022, the last wave of products counted,"
    " half of stage 3's communication assumed to be hidden",
    validated_on="",
    errors=(-0.25, 0.3),
    matrix_share=0.878,
    half_rate_share=WAVE_SHARE,
    network_share=0.632,
    hop_latency_s=1.16e-5,
    zero_overlap=0.5,
    launch_s_per_block_pass=0.0,
    host_s_per_block_pass=4.4e-3,
)
_DEEPSPEED_LEAF_BLOCKS = replace(
    _DEEPSPEED,
    name="deepspeed_leaf_blocks",
    fitted_on="nothing of its own, as deepspeed; small products as fsdp, attention as fsdp_compiled; the host work of a block"
    " gathered as one module as measured without a GPU (tests/bench/host_work.py)",
    half_rate_share=1.0,
    attention_share=FLASH_2_SHARE,
    attention_row_cost=FLASH_2_ROW_COST,
    host_s_per_block_pass=1.1e-3,
)
SOFTWARE: dict[str, Software] = {
    software.name: software
    for software in (
        _FSDP,
        _FSDP_2022,
        _FSDP_COMPILED,
        _MEGATRON_2021,
        _MEGATRON_DEEPSPEED_2022,
        _MEGATRON,
        _MEGATRON_CORE,
        _NANOTRON,
        _DEEPSPEED_2021,
        _DEEPSPEED_2022,
        _DEEPSPEED,
        _DEEPSPEED_LEAF_BLOCKS,
    )
}
