"""What the groups of cases share."""

import sys
import warnings

import torch

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=UserWarning)


def quantized(module):
    """The module dynamically quantized by torch; wrapped, since the root is never swapped."""
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(module))[0]


def sqnr(expected, got):
    noise = (expected - got).square().sum()
    return (10 * torch.log10(expected.square().sum() / noise)).item()


def agree(name, what, got, expected, decibels):
    """Ends the run if `got` is further from `expected` than so many decibels."""
    value = sqnr(expected, got)
    if got.shape != expected.shape or not value >= decibels:
        sys.exit(f"{name}: {what} disagrees: {value:.1f} dB, expected at least {decibels}")
