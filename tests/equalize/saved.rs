//! Equalized models, saved and loaded.

use crate::kit::*;
use crate::{HIDDEN, gain};

/// A norm of each kind: with a bias, read as a residual; without a bias; under PyTorch's old names.
#[derive(Quantizable, Clone)]
struct Model {
    norm: nn::LayerNorm,
    query: nn::Linear,
    post: nn::LayerNorm,
    rms: nn::RmsNorm,
    up: nn::Conv1d,
    old: nn::LayerNorm,
    head: nn::Linear,
}

impl Model {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let linear = |name| nn::linear(HIDDEN, HIDDEN, vb.pp(name));
        Ok(Self {
            norm: nn::layer_norm(HIDDEN, 1e-5, vb.pp("block.norm"))?,
            query: linear("block.query")?,
            post: nn::layer_norm_no_bias(HIDDEN, 1e-5, vb.pp("block.post"))?,
            rms: nn::rms_norm(HIDDEN, 1e-6, vb.pp("rms"))?,
            up: nn::conv1d(HIDDEN, HIDDEN, 1, Default::default(), vb.pp("up"))?,
            old: nn::layer_norm(HIDDEN, 1e-5, vb.pp("old"))?,
            head: linear("head")?,
        })
    }

    fn open(path: &Path, dtype: DType) -> Result<Self> {
        let vb = Checkpoint::open(path)?.var_builder(dtype, &Device::Cpu);
        Ok(Self::load(vb)?)
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let normal = self.norm.forward(xs)?;
        let xs = self.post.forward_add(&self.query.forward(&normal)?, &normal)?;
        let signal = self.rms.forward(&xs)?.t()?.unsqueeze(0)?;
        let xs = (&xs + self.up.forward(&signal)?.squeeze(0)?.t()?)?;
        self.head.forward(&self.old.forward(&xs)?)
    }

    fn equalize(&mut self) -> Result<()> {
        let dtype = self.query.weight().dtype();
        let xs = random(&[6, HIDDEN]).to_dtype(dtype)?;
        let report = equalize(self, &Equalization::default(), |model| model.forward(&xs))?;
        assert_eq!(report.pairs.len(), 3, "{report}");
        Ok(())
    }
}

fn tensors(dtype: DType) -> Result<HashMap<String, Tensor>> {
    let mut tensors = HashMap::new();
    for norm in ["block.norm.weight", "block.post.weight", "rms.weight", "old.gamma"] {
        tensors.insert(norm.to_owned(), gain(HIDDEN).to_dtype(dtype)?);
    }
    for bias in ["block.norm.bias", "old.beta"] {
        tensors.insert(bias.to_owned(), random(&[HIDDEN]).to_dtype(dtype)?);
    }
    for layer in ["block.query", "up", "head"] {
        let shape = &[HIDDEN, HIDDEN, 1][..if layer == "up" { 3 } else { 2 }];
        let weight = (random(shape) * 0.2)?.to_dtype(dtype)?;
        tensors.insert(format!("{layer}.weight"), weight);
        tensors.insert(format!("{layer}.bias"), random(&[HIDDEN]).to_dtype(dtype)?);
    }
    Ok(tensors)
}

/// A checkpoint, and its model equalized.
fn equalized() -> Result<(Source, Model)> {
    let source = Source::of_map(&tensors(DType::F32)?)?;
    let mut model = Model::load(source.vb.clone())?;
    model.equalize()?;
    Ok((source, model))
}

fn answer(model: &Model, xs: &Tensor) -> Result<Vec<u32>> {
    Ok(bits(&model.forward(&xs.to_dtype(model.norm.weight().dtype())?)?))
}

/// The names of a file's tensors.
fn names(path: &Path) -> Result<Vec<String>> {
    Ok(Checkpoint::open(path)?.tensors().map(|t| t.name).collect())
}

#[test]
fn they_load_back_bit_for_bit_with_the_code_that_loads_the_float_model() -> Result<()> {
    let xs = random(&[9, HIDDEN]);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let source = Source::of_map(&tensors(dtype)?)?;
        let (out, again) = (&source.out, source.beside("again"));
        for (file_dtype, spec) in [
            (DType::F32, Some(QConfigSpec::int8())),
            (dtype, Some(QConfigSpec::int8().exclude("up"))),
            (dtype, None),
        ] {
            let mut model = Model::open(&source.path, file_dtype)?;
            model.equalize()?;
            if let Some(spec) = &spec {
                quantize_dynamic(&mut model, spec)?;
            }
            source.save(&model)?;
            let loaded = Model::open(out, file_dtype)?;
            assert_eq!(answer(&loaded, &xs)?, answer(&model, &xs)?, "{dtype:?} {spec:?}");

            // The loaded model is saved unchanged, and equalized again.
            let saved = source.saved()?;
            let check = |model: &Model| -> Result<Model> {
                checkpoint::save(model, &saved, &again)?;
                assert_eq!(names(&again)?, names(out)?);
                let loaded = Model::open(&again, file_dtype)?;
                assert_eq!(answer(&loaded, &xs)?, answer(model, &xs)?);
                Ok(loaded)
            };
            let mut twice = check(&loaded)?;
            if spec.is_none() {
                twice.equalize()?;
                check(&twice)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_loader_without_the_factors_of_a_residual_finds_no_weight() -> Result<()> {
    let (source, model) = equalized()?;
    source.save(&model)?;
    let is_norm =
        |name: &String| !["block.query", "up", "head"].iter().any(|layer| name.starts_with(layer));
    let norms: Vec<_> = names(&source.out)?.into_iter().filter(is_norm).collect();
    let expected = "block.norm.bias block.norm.weight block.post.equalized.residual_weight \
                    block.post.equalized.weight old.bias old.weight rms.weight";
    assert_eq!(norms.join(" "), expected);
    let vb = source.saved_vb()?;
    let norm = |name| candle_nn::layer_norm_no_bias(HIDDEN, 1e-5, vb.pp(name));
    assert_eq!(bits(norm("rms")?.weight()), bits(model.rms.weight()));
    fault(norm("block.post")).has("block.post.weight");
    // A builder that has every tensor has no factors.
    let zeros = VarBuilder::zeros(DType::F32, &Device::Cpu);
    assert!(nn::layer_norm(HIDDEN, 1e-5, zeros.pp("norm")).is_ok());
    // Factors of another norm.
    fault(nn::layer_norm_no_bias(HIDDEN + 1, 1e-5, vb.pp("block.post")))
        .has("block.post")
        .has("[33]");
    Ok(())
}

#[test]
fn norms_that_have_no_tensor_or_share_one_are_errors() -> Result<()> {
    let (source, model) = equalized()?;
    let mut unnamed = model.clone();
    unnamed.norm = nn::LayerNorm::new(gain(HIDDEN), random(&[HIDDEN]), 1e-5);
    unnamed.equalize()?;
    fault(source.save(&unnamed)).has("norm").has("\"norm.weight\"");

    #[derive(Quantizable)]
    struct Two {
        first: Model,
        second: Model,
    }
    let mut two = Two { first: model, second: Model::load(source.vb.clone())? };
    fault(source.save(&two)).has("second").has("two layers");
    two.second = two.first.clone();
    source.save(&two)?;
    assert!(source.out.exists());
    Ok(())
}

/// Two layers with one name, as in a model whose code loads a module twice.
#[test]
fn a_norm_that_the_source_has_otherwise_or_twice_is_an_error() -> Result<()> {
    let (source, model) = equalized()?;
    let twin = Model::load(source.vb.clone())?;
    let save = |first: &Model, second: &Model| source.save(&(first.clone(), second.clone()));
    // Equal norms count once; different norms conflict, whichever is folded.
    save(&model, &model)?;
    fault(save(&model, &twin)).has("block.");
    fault(save(&twin, &model)).has("block.");
    // Both are folded, with different gains.
    let original = candle_core::safetensors::load(&source.path, &Device::Cpu)?;
    let with_norm = |weight: Tensor| {
        let mut tensors = original.clone();
        tensors.insert("block.norm.weight".to_owned(), weight);
        Source::of_map(&tensors)
    };
    let other = with_norm((&original["block.norm.weight"] * 1.3)?)?;
    let mut gained = Model::load(other.vb.clone())?;
    gained.equalize()?;
    let mut gained_norm = model.clone();
    gained_norm.norm = gained.norm.clone();
    fault(save(&model, &gained_norm)).has("block.norm");
    fault(save(&model, &gained)).has("block.");
    let mut moved = model.clone();
    moved.equalize()?;
    let bias = (moved.old.bias().expect("a bias") + 1.)?;
    let weight = moved.old.weight().clone();
    moved.old = nn::LayerNorm::new(weight, bias, 1e-5);
    assert!(save(&moved, &model).is_err());

    for changed in [
        Tensor::ones(HIDDEN - 1, DType::F32, &Device::Cpu)?,
        Tensor::ones(HIDDEN, DType::U8, &Device::Cpu)?,
    ] {
        fault(with_norm(changed)?.save(&model)).has("block.norm.weight").has("floats [32]");
    }
    Ok(())
}

#[test]
fn a_norm_that_the_source_has_not_is_no_matter_until_it_is_folded() -> Result<()> {
    #[derive(Quantizable, Clone)]
    struct Own {
        norm: nn::LayerNorm,
        up: nn::Linear,
    }

    let source = Source::of_map(&tensors(DType::F32)?)?;
    let mut model = Own {
        norm: nn::LayerNorm::new_no_bias(gain(HIDDEN), 1e-5),
        up: nn::linear(HIDDEN, HIDDEN, source.vb.pp("head"))?,
    };
    source.save(&model)?;
    let xs = random(&[6, HIDDEN]);
    equalize(&mut model, &Equalization::default(), |model| {
        model.up.forward(&model.norm.forward(&xs)?)
    })?;
    fault(source.save(&model)).has("norm.weight");
    Ok(())
}

#[test]
fn factors_of_another_size_are_refused() -> Result<()> {
    let (source, model) = equalized()?;
    source.save(&model)?;
    let mut tensors = candle_core::safetensors::load(&source.out, &Device::Cpu)?;
    let factors = tensors.iter_mut().find(|(name, _)| name.contains("residual"));
    let (_, factors) = factors.expect("the factors of a residual");
    *factors = factors.narrow(0, 1, HIDDEN - 1)?.copy()?;
    fault(Model::load(Source::of_map(&tensors)?.vb))
        .has("layer_norm")
        .has("expected [32], got [31]");
    Ok(())
}
