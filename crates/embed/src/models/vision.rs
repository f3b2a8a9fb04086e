//! Models of pictures: the vision towers of CLIP and SigLIP, and DINOv2.

use anyhow::{Result, ensure};
use candle_core::{D, Result as CandleResult, Tensor};
use candle_dynquant::ops::Mask;
use candle_dynquant::{FusedActivation, QConfigSpec, Quantizable, nn, quantize_dynamic};
use candle_nn::{Conv2dConfig, Module, VarBuilder};

use super::bert;
use super::clip::{self, TOWER};
use super::layer::{Expanded, Parts, Projected, pre_norm};
use super::mlp::Mlp;
use super::projections::Heads;
use super::rows::Rows;
use super::sizes::Sizes;
use super::transformer::{Hidden, Layer};
use super::view::{Sees, View};
use crate::keys::Keys;
use crate::tables;

#[derive(Clone, Quantizable)]
pub(crate) struct Vision {
    patches: nn::Conv2d,
    /// The tokens before the patches, with their positions: of the class, and registers.
    #[quantizable(skip)]
    first: Option<Tensor>,
    /// The positions of the patches, `[patches, hidden]`.
    #[quantizable(skip)]
    positions: Tensor,
    before: Option<nn::LayerNorm>,
    layers: Vec<Layer>,
    norm: nn::LayerNorm,
    /// The pooling by attention; without it the first token is taken.
    head: Option<Head>,
    projection: Option<nn::Linear>,
}

/// SigLIP's pooling: attention of one learned query to all tokens, then products.
#[derive(Clone, Quantizable)]
struct Head {
    /// The query, `[1, heads, 1, dim]`.
    #[quantizable(skip)]
    query: Tensor,
    /// The products of keys and values.
    inputs: nn::Linear,
    attention: nn::Attention,
    output: nn::Linear,
    norm: nn::LayerNorm,
    mlp: Mlp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Clip,
    Siglip,
    Dino,
}

/// The `model_type`s, their family, their class of image processors and transformers' defaults.
#[rustfmt::skip]
const ALL: [(&str, Family, &str, &str); 6] = [
    ("clip", Family::Clip, "CLIPImageProcessor", CLIP),
    ("clip_vision_model", Family::Clip, "CLIPImageProcessor", CLIP),
    ("siglip", Family::Siglip, "SiglipImageProcessor", SIGLIP),
    ("siglip_vision_model", Family::Siglip, "SiglipImageProcessor", SIGLIP),
    ("dinov2", Family::Dino, "BitImageProcessor", DINO),
    ("dinov2_with_registers", Family::Dino, "BitImageProcessor", DINO),
];

const CLIP: &str = r#"{"hidden_size": 768, "intermediate_size": 3072, "projection_dim": 512, "num_hidden_layers": 12,
    "num_attention_heads": 12, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}"#;
const SIGLIP: &str = r#"{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}"#;
const DINO: &str = r#"{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4,
    "image_size": 224, "patch_size": 14, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_register_tokens": 4}"#;

const DINO_LAYER: Parts = Parts {
    inputs: Projected::Each([
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ]),
    up: Expanded::Plain("mlp.fc1"),
    down: "mlp.fc2",
    norms: [pre_norm("norm1"), pre_norm("norm2")],
    ..bert::BERT
};

/// The configuration of a model of pictures.
pub(crate) struct VisionConfig {
    family: Family,
    keys: Keys,
    sizes: Sizes,
    patch: usize,
    /// The patches of a side of the table of positions.
    side: usize,
    /// The class of image processors that transformers takes for the model.
    pub processor: &'static str,
    /// Whether there is also a tower of texts.
    pub takes_texts: bool,
    pub notes: Vec<String>,
}

impl VisionConfig {
    pub fn is_known(model_type: &str) -> bool {
        ALL.iter().any(|(name, ..)| *name == model_type)
    }

    pub fn read(whole: &Keys) -> Result<Self> {
        let model_type = whole.word("model_type")?.unwrap_or_default();
        let known = ALL.into_iter().find(|(name, ..)| *name == model_type);
        let (_, family, processor, defaults) = known.ok_or_else(|| {
            let names = ALL.map(|(name, ..)| name).join(", ");
            whole.fault("model_type", &format!("one of {names}"))
        })?;
        let mut notes = Vec::new();
        let keys = whole.tower("vision_config", defaults, &mut notes)?;
        notes.extend(keys.notes(&[&tables::TOWER, &tables::COMMON])?);
        let hidden = keys.size("hidden_size")?;
        let inner = match family {
            Family::Dino => hidden * keys.size("mlp_ratio")?,
            Family::Clip | Family::Siglip => keys.size("intermediate_size")?,
        };
        let (size, patch) = (keys.size("image_size")?, keys.size("patch_size")?);
        if patch > size {
            return Err(keys.fault("patch_size", &format!("at most {size}, the image_size")));
        }
        Ok(Self {
            family,
            sizes: clip::tower_sizes(&keys, inner)?,
            keys,
            patch,
            side: size / patch,
            processor,
            takes_texts: matches!(&*model_type, "clip" | "siglip"),
            notes,
        })
    }

    /// The tensors of the other tower.
    pub const OTHERS: [&str; 2] = ["text_model.", "text_projection."];

    /// Loads the model for pictures of a height and width.
    pub fn load(&self, [height, width]: [usize; 2], vb: &VarBuilder<'_>) -> Result<Vision> {
        let (keys, sizes, hidden) = (&self.keys, &self.sizes, self.sizes.hidden);
        let [rows, columns] = [height / self.patch, width / self.patch];
        let (is_dino, is_clip) = (self.family == Family::Dino, self.family == Family::Clip);
        let size = keys.size("image_size")?;
        let expected = format!("{height} x {width}, as preprocessor_config.json says");
        ensure!(
            (is_dino && rows > 0 && columns > 0) || [height, width] == [size; 2],
            keys.fault("image_size", &expected)
        );
        let [name, layers, last] = if is_dino {
            ["patch_embeddings.projection", "encoder.layer", "layernorm"]
        } else {
            ["patch_embedding", TOWER.layers, "post_layernorm"]
        };
        let names = ["vision_model", "dinov2", "dinov2_with_registers"];
        let mut below = names.into_iter().map(|name| vb.pp(name));
        let first = format!("embeddings.{name}.weight");
        let tower = below.find(|vb| vb.contains_tensor(&first));
        let tower = tower.unwrap_or_else(|| vb.clone());
        let parts = tower.pp("embeddings");
        let config = Conv2dConfig { stride: self.patch, ..Conv2dConfig::default() };
        let load = if is_clip { nn::conv2d_no_bias } else { nn::conv2d };
        let (first, table) = self.table(&parts)?;
        let norm = |name: &str| sizes.norm(tower.pp(name));
        let is_projected = keys.word("model_type")?.is_some_and(|it| it == "clip")
            || vb.contains_tensor("visual_projection.weight");
        let outputs = keys.size_or("projection_dim", hidden)?;
        let project = || sizes.linear(outputs, false, vb.pp("visual_projection"));
        let head = || Head::load(sizes, &tower.pp("head"));
        let is_pooled = self.family == Family::Siglip;
        Ok(Vision {
            patches: load(3, hidden, self.patch, config, parts.pp(name))?,
            first,
            positions: interpolated(&table, self.side, [rows, columns])?,
            before: is_clip.then(|| norm("pre_layrnorm")).transpose()?,
            layers: (0..sizes.layers)
                .map(|i| self.layer(tower.pp(layers).pp(i)))
                .collect::<Result<_>>()?,
            norm: norm(last)?,
            head: is_pooled.then(head).transpose()?,
            projection: is_projected.then(project).transpose()?,
        })
    }

    /// The tokens before the patches, with their positions, and the patches' positions.
    fn table(&self, vb: &VarBuilder<'_>) -> Result<(Option<Tensor>, Tensor)> {
        let (patches, hidden) = (self.side * self.side, self.sizes.hidden);
        let get = |rows, name| vb.get((1, rows, hidden), name)?.squeeze(0);
        let positions = |rows| nn::embedding(rows, hidden, vb.pp("position_embedding"));
        let (class, table) = match self.family {
            Family::Siglip => return Ok((None, positions(patches)?.embeddings().clone())),
            Family::Clip => (
                vb.get(hidden, "class_embedding")?.unsqueeze(0)?,
                positions(patches + 1)?.embeddings().clone(),
            ),
            Family::Dino => (get(1, "cls_token")?, get(patches + 1, "position_embeddings")?),
        };
        let mut first = vec![(class + table.narrow(0, 0, 1)?)?];
        let model_type = self.keys.word("model_type")?;
        if model_type.is_some_and(|it| it == "dinov2_with_registers") {
            let count = self.keys.size("num_register_tokens")?;
            first.push(get(count, "register_tokens")?);
        }
        Ok((Some(Tensor::cat(&first, 0)?), table.narrow(0, 1, patches)?))
    }

    fn layer(&self, vb: VarBuilder<'_>) -> Result<Layer> {
        if self.family != Family::Dino {
            return Ok(TOWER.load(&self.sizes, &vb)?);
        }
        let (mut parts, mut sizes) = (DINO_LAYER, self.sizes);
        if self.keys.flag("use_swiglu_ffn", false)? {
            sizes.inner = (sizes.inner * 2 / 3).next_multiple_of(8);
            sizes.activation = FusedActivation::Silu;
            parts.up = Expanded::Fused("mlp.weights_in", true);
            parts.down = "mlp.weights_out";
        }
        let mut layer = parts.load(&sizes, &vb)?;
        let scale = |name: &str| vb.pp(name).get(sizes.hidden, "lambda1");
        layer.around_attention.scale = Some(scale("layer_scale1")?);
        layer.around_mlp.scale = Some(scale("layer_scale2")?);
        Ok(layer)
    }
}

impl Vision {
    /// The vectors of pictures, `[pictures, size]` of `[pictures, 3, height, width]`.
    pub fn forward(&self, pixels: &Tensor) -> CandleResult<Tensor> {
        let patches = self.patches.forward(pixels)?.flatten_from(2)?;
        let mut xs = patches.transpose(1, 2)?.broadcast_add(&self.positions)?;
        let (pictures, _, hidden) = xs.dims3()?;
        if let Some(first) = &self.first {
            let first = first.broadcast_as((pictures, first.dim(0)?, hidden))?;
            xs = Tensor::cat(&[&first, &xs], 1)?;
        }
        let tokens = xs.dim(1)?;
        xs = xs.reshape((pictures * tokens, hidden))?;
        if let Some(norm) = &self.before {
            xs = norm.forward(&xs)?;
        }
        let rows = Rows::of_one_length(pictures, tokens);
        let view = View::plain(Sees::All).for_rows(&rows)?;
        let mut state = Hidden::from(xs);
        for layer in &self.layers {
            state = layer.forward(state, &rows, &view)?;
        }
        let pooled = match &self.head {
            Some(head) => head.forward(&state.normal(&self.norm)?.0, pictures)?,
            None => {
                let all = state.complete()?.reshape((pictures, tokens, hidden))?;
                self.norm.forward(&all.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?)?
            }
        };
        match &self.projection {
            Some(projection) => projection.forward(&pooled),
            None => Ok(pooled),
        }
    }

    /// Quantizes the products of a weight that no quantized checkpoint has.
    pub fn quantize_rest(&mut self, spec: &QConfigSpec) -> Result<()> {
        if let Some(head) = &mut self.head {
            quantize_dynamic(&mut head.inputs, spec)?;
        }
        Ok(())
    }

    pub fn outputs(&self) -> usize {
        let projection = self.projection.as_ref().map(|it| it.weight().dims()[0]);
        projection.unwrap_or(self.positions.dims()[1])
    }

    pub fn tokens(&self) -> usize {
        self.positions.dims()[0] + self.first.as_ref().map_or(0, |first| first.dims()[0])
    }
}

impl Head {
    fn load(sizes: &Sizes, vb: &VarBuilder<'_>) -> Result<Self> {
        let (hidden, Heads { queries, dim, .. }) = (sizes.hidden, sizes.heads);
        let place = vb.pp("attention");
        let weight = place.get((3 * hidden, hidden), "in_proj_weight")?;
        let bias = place.get(3 * hidden, "in_proj_bias")?;
        let [of_query, others] = [(0, hidden), (hidden, 2 * hidden)].map(|(start, size)| {
            let (weight, bias) = (weight.narrow(0, start, size)?, bias.narrow(0, start, size)?);
            candle_core::Result::Ok(nn::Linear::new(weight.contiguous()?, Some(bias.contiguous()?)))
        });
        let probe = vb.get((1, 1, hidden), "probe")?;
        Ok(Self {
            query: of_query?.forward(&probe)?.reshape((1, queries, 1, dim))?,
            inputs: others?,
            attention: nn::Attention::load(sizes.heads.scale(), place.clone()),
            output: sizes.linear(hidden, true, place.pp("out_proj"))?,
            norm: sizes.norm(vb.pp("layernorm"))?,
            mlp: TOWER.mlp(sizes, vb)?,
        })
    }

    fn forward(&self, xs: &Tensor, pictures: usize) -> CandleResult<Tensor> {
        let (_, heads, _, dim) = self.query.dims4()?;
        let both = self.inputs.forward(xs)?.reshape((pictures, (), 2, heads, dim))?;
        let part = |i| both.narrow(2, i, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let query = self.query.broadcast_as((pictures, heads, 1, dim))?.contiguous()?;
        let context = self.attention.forward(&query, &part(0)?, &part(1)?, Mask::All)?;
        let ys = self.output.forward(&context.reshape((pictures, heads * dim))?)?;
        &ys + self.mlp.forward(&self.norm.forward(&ys)?)?
    }
}

/// The positions of a square of patches for another number of rows and columns, by torch's bicubic
/// interpolation.
fn interpolated(table: &Tensor, side: usize, [rows, columns]: [usize; 2]) -> CandleResult<Tensor> {
    if [rows, columns] == [side; 2] {
        return Ok(table.clone());
    }
    let hidden = table.dim(D::Minus1)?;
    let weights = |to| Tensor::from_vec(cubic(side, to), (to, side), table.device());
    // Along columns, then along rows.
    let table = table.reshape((side, side, hidden))?;
    let wide = weights(columns)?.broadcast_matmul(&table)?;
    let wide = wide.reshape((side, columns * hidden))?;
    weights(rows)?.matmul(&wide)?.reshape((rows * columns, hidden))
}

/// The weights of the sources of each output, `[to, from]`.
fn cubic(from: usize, to: usize) -> Vec<f32> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.) * x - (A + 3.)) * x * x + 1.;
    let far = |x: f32| ((A * x - 5. * A) * x + 8. * A) * x - 4. * A;
    let mut all = vec![0.; from * to];
    let scale = from as f32 / to as f32;
    for (i, weights) in all.chunks_exact_mut(from).enumerate() {
        let place = scale * (i as f32 + 0.5) - 0.5;
        let t = place - place.floor();
        let taps = [far(t + 1.), near(t), near(1. - t), far(2. - t)];
        for (tap, weight) in (-1i64..).zip(taps) {
            let source = (place.floor() as i64 + tap).clamp(0, from as i64 - 1);
            weights[source as usize] += weight;
        }
    }
    all
}
