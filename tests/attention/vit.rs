//! A ViT that reads handwritten digits, trained by `assets/reference/vit.py`.

use crate::kit::*;

const SIZE: usize = 64;
const INNER: usize = 128;
const HEADS: usize = 2;
const LAYERS: usize = 4;
const EPS: f64 = 1e-12;
const CLASSES: usize = 10;

/// An image has 4 x 4 patches of 2 x 2 pixels.
const PATCHES: usize = 4;
const PATCH: usize = 2;

/// The model, and images outside its training with transformers' results.
pub struct Digits {
    pub model: Vit,
    /// `[images, 8, 8]`
    pub images: Tensor,
    pub labels: Vec<Option<usize>>,
    /// `[images, 10]`
    pub logits: Tensor,
}

impl Digits {
    pub fn read() -> Result<Self> {
        let file = repository().join("assets/reference/vit.safetensors");
        let mut tensors = candle_core::safetensors::load(file, &Device::Cpu)?;
        let mut take = |name: &str| tensors.remove(name).context("no such tensor");
        let [images, labels, logits] = [take("images")?, take("labels")?, take("logits")?];
        let labels = labels.to_vec1::<u8>()?;
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        Ok(Self {
            model: Vit::load(vb)?,
            images: ((images.to_dtype(DType::F32)? / 8.)? - 1.)?,
            labels: labels.into_iter().map(|x| Some(x.into())).collect(),
            logits,
        })
    }
}

#[derive(Quantizable, Clone)]
pub struct Vit {
    patches: nn::Linear,
    first: Tensor,
    positions: Tensor,
    layers: Vec<Layer>,
    norm: nn::LayerNorm,
    classifier: nn::Linear,
}

impl Vit {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let vit = vb.pp("vit");
        let embeddings = vit.pp("embeddings");
        let patches = embeddings.pp("patch_embeddings.projection");
        let weight = patches.get((SIZE, 1, PATCH, PATCH), "weight")?;
        let layers = (0..LAYERS).map(|i| Layer::load(vit.pp("encoder.layer").pp(i)));
        Ok(Self {
            patches: nn::Linear::new(
                weight.reshape((SIZE, PATCH * PATCH))?,
                Some(patches.get(SIZE, "bias")?),
            ),
            first: embeddings.get((1, 1, SIZE), "cls_token")?,
            positions: embeddings.get((1, PATCHES * PATCHES + 1, SIZE), "position_embeddings")?,
            layers: layers.collect::<candle_core::Result<_>>()?,
            norm: nn::layer_norm(SIZE, EPS, vit.pp("layernorm"))?,
            classifier: nn::linear(SIZE, CLASSES, vb.pp("classifier"))?,
        })
    }

    /// Logits `[images, 10]`.
    pub fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let count = images.dim(0)?;
        let patches = images.reshape((count, PATCHES, PATCH, PATCHES, PATCH))?;
        let patches = patches.permute((0, 1, 3, 2, 4))?;
        let patches = patches.reshape((count, PATCHES * PATCHES, PATCH * PATCH))?;
        let first = self.first.expand((count, 1, SIZE))?;
        let hidden = Tensor::cat(&[&first, &self.patches.forward(&patches)?], 1)?;
        let mut hidden = hidden.broadcast_add(&self.positions)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden)?;
        }
        let first = self.norm.forward(&hidden)?.narrow(1, 0, 1)?.squeeze(1)?;
        self.classifier.forward(&first.contiguous()?)
    }
}

#[derive(Quantizable, Clone)]
struct Layer {
    before: nn::LayerNorm,
    projections: [nn::Linear; 3],
    attention: nn::Attention,
    output: nn::Linear,
    after: nn::LayerNorm,
    up: nn::Linear,
    down: nn::Linear,
}

impl Layer {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let attention = vb.pp("attention.attention");
        let projection = |name| nn::linear(SIZE, SIZE, attention.pp(name));
        let scale = 1. / ((SIZE / HEADS) as f32).sqrt();
        let up = nn::linear(SIZE, INNER, vb.pp("intermediate.dense"))?;
        Ok(Self {
            before: nn::layer_norm(SIZE, EPS, vb.pp("layernorm_before"))?,
            projections: [projection("query")?, projection("key")?, projection("value")?],
            attention: nn::Attention::load(scale, attention),
            output: nn::linear(SIZE, SIZE, vb.pp("attention.output.dense"))?,
            after: nn::layer_norm(SIZE, EPS, vb.pp("layernorm_after"))?,
            up: up.with_activation(FusedActivation::Gelu),
            down: nn::linear(INNER, SIZE, vb.pp("output.dense"))?,
        })
    }

    fn forward(&self, hidden: &Tensor) -> candle_core::Result<Tensor> {
        let (images, seq, _) = hidden.dims3()?;
        let projected =
            nn::Linear::forward_each(self.projections.each_ref(), &self.before.forward(hidden)?)?;
        let [mut q, mut k, mut v] = projected;
        for part in [&mut q, &mut k, &mut v] {
            let heads = part.reshape((images, seq, HEADS, SIZE / HEADS))?;
            *part = heads.transpose(1, 2)?;
        }
        let context = self.attention.forward(&q, &k, &v, None)?;
        let context = context.transpose(1, 2)?.reshape((images, seq, SIZE))?;
        let hidden = (hidden + self.output.forward(&context)?)?;
        let inner = self.up.forward(&self.after.forward(&hidden)?)?;
        hidden + self.down.forward(&inner)?
    }
}
