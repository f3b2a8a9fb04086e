//! Sizes of models and of their inputs.

use anyhow::Result;
use candle_core::{Device, Tensor};

pub struct Size {
    pub name: &'static str,
    pub hidden: usize,
    pub heads: usize,
    pub inner: usize,
    pub layers: usize,
    pub vocab: usize,
    pub batch: usize,
    pub len: usize,
}

const SIZES: &[Size] = &[
    Size {
        name: "small",
        hidden: 64,
        heads: 4,
        inner: 128,
        layers: 2,
        vocab: 100,
        batch: 2,
        len: 24,
    },
    Size {
        name: "minilm",
        hidden: 384,
        heads: 12,
        inner: 1536,
        layers: 6,
        vocab: 1000,
        batch: 1,
        len: 128,
    },
    Size {
        name: "minilm-16",
        hidden: 384,
        heads: 12,
        inner: 1536,
        layers: 6,
        vocab: 1000,
        batch: 1,
        len: 16,
    },
    Size {
        name: "base",
        hidden: 768,
        heads: 12,
        inner: 3072,
        layers: 12,
        vocab: 1000,
        batch: 1,
        len: 128,
    },
    Size {
        name: "base-16",
        hidden: 768,
        heads: 12,
        inner: 3072,
        layers: 12,
        vocab: 1000,
        batch: 1,
        len: 16,
    },
];

impl Size {
    pub fn named(name: &str) -> Result<&'static Self> {
        let names: Vec<_> = SIZES.iter().map(|size| size.name).collect();
        let found = SIZES.iter().find(|size| size.name == name);
        found.ok_or_else(|| anyhow::anyhow!("no size {name}: one of {}", names.join(", ")))
    }

    /// The size at which outputs are compared.
    pub fn small() -> &'static Self {
        &SIZES[0]
    }

    pub fn is_small(&self) -> bool {
        self.name == SIZES[0].name
    }

    /// The number of tokens for a decoder that has an encoder.
    pub fn few(&self) -> usize {
        self.len.min(6)
    }

    /// The number of layers of Whisper, which has no more.
    pub fn whisper_layers(&self) -> usize {
        self.layers.min(4)
    }

    pub fn ids(&self, len: usize) -> candle_core::Result<Tensor> {
        let ids = (0..self.batch * len).map(|i| (i * 7 % self.vocab) as u32);
        Tensor::from_vec(ids.collect(), (self.batch, len), &Device::Cpu)
    }

    /// The mask, 1 for tokens; each text is 3 tokens shorter than the text before.
    pub fn mask(&self) -> candle_core::Result<Tensor> {
        let len = self.len;
        let mask = (0..self.batch * len).map(|i| u32::from(i % len + i / len * 3 < len));
        Tensor::from_vec(mask.collect(), (self.batch, len), &Device::Cpu)
    }
}
