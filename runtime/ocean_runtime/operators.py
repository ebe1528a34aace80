"""The operators that a step graph may use. Another one is added here by a line, with a test that runs it.

Left out on purpose: what loops without a bound (Loop), makes tensors whose size no input has (Range, NonZero,
Multinomial, RandomNormal, ...), holds anything but tensors (Sequence*, Optional*, strings), or reads
files. The list is of what the runtime has been tried with: the export's own graphs, those of torch.onnx, the
fused and quantised operators of onnxruntime, and recurrent models of others.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


STANDARD = _names(
    # arithmetic and logic, element by element
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor "
    "Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log "
    "LogSoftmax Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin "
    "Sinh Softmax Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor "
    # sums over axes, products, norms
    "ArgMax ArgMin CumSum Einsum Gemm LayerNormalization LpNormalization MatMul MatMulInteger RMSNormalization "
    "SimplifiedLayerNormalization "
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare TopK "
    # shapes and places
    "Cast CastLike Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "OneHot Pad Reshape Resize ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile "
    "Transpose Trilu Unsqueeze "
    # layers of other people's models
    "AveragePool BatchNormalization Conv ConvTranspose Dropout GRU GlobalAveragePool GlobalMaxPool "
    "GroupNormalization InstanceNormalization LSTM MaxPool RNN STFT "
    # quantised
    "DequantizeLinear DynamicQuantizeLinear QLinearMatMul QuantizeLinear "
    # subgraphs: one branch of two, and a loop as long as its input
    "If Scan"
)

MICROSOFT = _names(
    "BiasGelu DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul FastGelu FusedConv FusedGemm "
    "FusedMatMul Gelu MatMulIntegerToFloat MatMulNBits QuantizeLinear QuickGelu "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization"
)

DOMAINS = {"": STANDARD, "ai.onnx": STANDARD, "com.microsoft": MICROSOFT}

SUBGRAPHS = _names("If Scan")
"""Operators that hold graphs."""

AT_LEAST_ONE = _names(
    "strides dilations kernel_shape group hidden_size num_scan_inputs blocksize num_groups K N block_size "
    "num_outputs output_shape"
)
"""Integer attributes that divide or count, by name: none of them may be zero or negative."""

GROWS = _names("ConstantOfShape Expand Pad Tile")
"""Operators whose constant inputs are sizes of what they make."""

SIZED_BY = {"OneHot": (1,), "Resize": (2, 3), "STFT": (1, 3)}
"""By operator, the inputs that are sizes, factors or steps of what it makes. They must be constants and positive:
onnxruntime would divide by a step of zero, and a size from data has no bound."""

MULTIPLIES = {
    "ConvTranspose": _names("strides dilations output_padding"),
    **dict.fromkeys(("AveragePool", "MaxPool"), _names("kernel_shape dilations")),
}
"""Attributes, by operator, whose product says how many times as large as its input the output is, or how many numbers
one of it is made of. A pool with auto_pad has been seen to work for minutes."""

ONE_OF = {
    "bits": (2, 4, 8),
    "block_size": (16, 32, 64, 128, 256),
    "blocksize": tuple(range(1, 65)),
}
"""Integer attributes with few sensible values."""

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

OPTIONAL: dict[str, tuple[int, ...]] = {
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS},
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), tuple(range(3, 12))),
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "Gemm", "FusedGemm", "QuantizeLinear", "DequantizeLinear"), (2,)
    ),
    **dict.fromkeys(("Squeeze", "Split", "Trilu", "FastGelu"), (1,)),
    **dict.fromkeys(("Clip", "Dropout"), (1, 2)),
    **dict.fromkeys(("Pad", "MatMulInteger", "FusedConv"), (2, 3)),
    **dict.fromkeys(("Slice", "DynamicQuantizeMatMul", "SkipLayerNormalization"), (3, 4)),
    "Resize": (1, 2, 3),
    "STFT": (2, 3),
    "SkipSimplifiedLayerNormalization": (3,),
    "MatMulIntegerToFloat": (4, 5, 6),
    "MatMulNBits": (3, 4, 5),
}
"""Which inputs of an operator may be left out by an empty name. onnxruntime 1.32 lets it pass at others too, and
then reads through a null pointer: at the bias of LayerNormalization as well, which may be left out altogether."""
