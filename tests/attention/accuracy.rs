//! The loss by attention with factors of fewer bits, by itself and beside `int8()`: sentence
//! embeddings, a classifier of texts, a ViT, and a decoder.
//!
//! With `--nocapture` the tests print the figures of docs/presets.md, with `DYNQUANT_LONG=1` for
//! all held-out texts. MiniLM is read from the folder that `DYNQUANT_MINILM` names.

use candle_dynquant_decoder::Decoder;
use candle_dynquant_support::bert::measure::{class, sqnr_db};
use candle_dynquant_support::bert::{Batch, Bert, Folder, texts};

use crate::kit::*;
use crate::vit::{Digits, Vit};

const PRECISIONS: [Precision; 3] = [Precision::Float32, Precision::BFloat16, Precision::Int8];

/// The step between the texts used, unless the test runs long: the kernels of a debug build are
/// slow.
const STEP: usize = 8;

fn step() -> usize {
    std::env::var_os("DYNQUANT_LONG").map_or(STEP, |_| 1)
}

type Answers = Vec<Vec<f32>>;

/// The answers of the float model and of `int8()`, each with attention in every one of
/// `PRECISIONS`.
struct Compared([[Answers; 3]; 2]);

impl Compared {
    fn new<M: Quantizable + Clone>(
        float: &M,
        answers: impl Fn(&M) -> Result<Answers>,
    ) -> Result<Self> {
        let mut int8 = float.clone();
        quantize_dynamic(&mut int8, &QConfigSpec::int8())?;
        let mut compared = [const { [const { Vec::new() }; 3] }; 2];
        for (model, of_model) in [float, &int8].into_iter().zip(&mut compared) {
            for (attention, rows) in PRECISIONS.into_iter().zip(of_model) {
                let mut model = model.clone();
                if attention != Precision::Float32 {
                    let spec = QConfigSpec::new().kind(LayerKind::Attention, attention);
                    quantize_dynamic(&mut model, &spec)?;
                }
                *rows = answers(&model)?;
            }
        }
        Ok(Self(compared))
    }

    fn map(&self, figure: impl Fn(&Answers) -> f64) -> [[f64; 3]; 2] {
        let of_model = |rows: &[Answers; 3]| rows.each_ref().map(&figure);
        self.0.each_ref().map(of_model)
    }

    /// Checks SQNR in dB against the float model with attention in f32: of attention alone, and
    /// that attention adds only its noise to that of `int8()`.
    fn check(&self, name: &str, least: f64) {
        let exact = &self.0[0][0];
        let db = self.map(|rows| sqnr_db(exact, rows));
        print(&format!("SQNR of {name}"), db);
        let [[_, _, alone], [int8, _, both]] = db;
        assert!((least..f64::INFINITY).contains(&alone), "{name} by itself: {alone} dB");
        let sum = sum_of_noise(int8, alone);
        assert!(both >= sum - 0.2, "{name}: int8() {int8} dB, with it {both} dB, as sum {sum} dB");
    }
}

/// The SQNR of two independent noises.
fn sum_of_noise(a: f64, b: f64) -> f64 {
    let noise = |db: f64| 10f64.powf(-db / 10.);
    -10. * (noise(a) + noise(b)).log10()
}

fn print(name: &str, [float, int8]: [[f64; 3]; 2]) {
    for (attention, (float, int8)) in PRECISIONS.iter().zip(float.iter().zip(&int8)) {
        println!("{name}, attention {attention:?}: {float:.2} float, {int8:.2} int8()");
    }
}

fn of_batches(batches: &[Batch]) -> impl Fn(&Bert) -> Result<Answers> {
    move |model| {
        let mut rows = Vec::new();
        for batch in batches {
            rows.extend(model.forward(batch)?.to_vec2()?);
        }
        Ok(rows)
    }
}

fn batches(folder: &Folder, texts: &[texts::Text]) -> Result<Vec<Batch>> {
    let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
    let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &strings, None)?;
    texts::batches(&tokens, 16, folder.config.pad_token_id)
}

#[test]
fn minilm_loses_little_by_attention_in_8_bits() -> Result<()> {
    let Some(dir) = model_folder("DYNQUANT_MINILM", "fetch_minilm.sh") else { return Ok(()) };
    let folder = Folder::read(&dir)?;
    let sentences = repository().join("assets/reference/minilm_sentences.txt");
    let batches = batches(&folder, &texts::read(&sentences, &[], false)?)?;
    let compared = Compared::new(&folder.model, of_batches(&batches))?;
    compared.check("MiniLM", 43.);
    let [[exact, _, _], [int8, _, both]] = &compared.0;
    let [int8, both] = [int8, both].map(|rows| sqnr_db(exact, rows));
    assert!(both >= int8 - 0.2, "int8() {int8} dB, with it {both} dB");
    Ok(())
}

#[test]
fn the_embedded_bert_loses_little_by_attention_in_8_bits() -> Result<()> {
    let dir = repository().join("assets/bert");
    let folder = Folder::read(&dir)?;
    let texts = texts::read(&dir.join("heldout.tsv"), &folder.config.labels, true)?;
    let texts: Vec<_> = texts.into_iter().step_by(step()).collect();
    let batches = batches(&folder, &texts)?;
    let compared = Compared::new(&folder.model, of_batches(&batches))?;
    compared.check("assets/bert", 55.);
    let labels: Vec<_> = texts.iter().map(|text| text.label).collect();
    check_accuracy(&compared, "assets/bert", &labels);
    Ok(())
}

/// Checks that the loss of accuracy is at most 0.3 points.
fn check_accuracy(compared: &Compared, name: &str, labels: &[Option<usize>]) {
    let accuracy = compared.map(|rows| {
        let pairs = labels.iter().zip(rows);
        let right = pairs.filter(|(label, row)| Some(class(row).0) == **label);
        100. * right.count() as f64 / labels.len() as f64
    });
    print(&format!("accuracy of {name} in %"), accuracy);
    for [in_f32, _, in_int8] in accuracy {
        assert!(in_int8 >= in_f32 - 0.3, "{in_f32} % in f32, {in_int8} %");
    }
}

#[test]
fn a_vit_loses_little_by_attention_in_8_bits() -> Result<()> {
    let Digits { model, images, labels, logits } = Digits::read()?;
    let answers = |model: &Vit| -> Result<Answers> { Ok(model.forward(&images)?.to_vec2()?) };
    let difference = (model.forward(&images)? - logits)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 2e-5, "of transformers' logits: {difference:e}");
    let compared = Compared::new(&model, answers)?;
    compared.check("a ViT", 40.);
    check_accuracy(&compared, "a ViT", &labels);
    Ok(())
}

/// Scores of the next token, less their mean, which no probability depends on.
#[test]
fn a_decoder_loses_little_by_attention_in_8_bits() -> Result<()> {
    const WINDOW: usize = 256;
    let folder = candle_dynquant_decoder::Folder::open(&repository().join("assets/decoder"), None)?;
    let text = fs::read_to_string(repository().join("assets/lstm/heldout.txt"))?;
    let ids = folder.texts.encode(&text)?;
    let windows: Vec<_> = ids.chunks_exact(WINDOW).step_by(4 * step()).collect();
    let next: Vec<_> = windows.iter().flat_map(|window| &window[1..]).collect();
    let answers = |model: &Decoder| -> Result<Answers> {
        let mut rows = Vec::new();
        for window in &windows {
            let ids = Tensor::new(*window, &Device::Cpu)?.unsqueeze(0)?;
            let scores = model.all(&ids, &mut model.cache())?.squeeze(0)?;
            let scores = scores.narrow(0, 0, WINDOW - 1)?.to_dtype(DType::F32)?;
            rows.extend(scores.broadcast_sub(&scores.mean_keepdim(D::Minus1)?)?.to_vec2()?);
        }
        Ok(rows)
    };
    let compared = Compared::new(&folder.load()?, answers)?;
    compared.check("assets/decoder", 40.);
    let perplexity = compared.map(|rows| {
        let nats = rows.iter().zip(&next).map(|(row, token)| {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            sum.ln() - f64::from(row[**token as usize])
        });
        (nats.sum::<f64>() / next.len() as f64).exp()
    });
    print("perplexity of assets/decoder", perplexity);
    for [in_f32, _, in_int8] in perplexity {
        assert!(in_int8 <= 1.001 * in_f32, "{in_f32} in f32, {in_int8}");
    }
    Ok(())
}
