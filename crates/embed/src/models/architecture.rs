//! The known architectures, by `model_type` in `config.json`.

use anyhow::Result;
use candle_core::{Result as CandleResult, Tensor};
use candle_dynquant::FusedActivation::{Gelu, Relu, Tanh};
use candle_dynquant::{Quantizable, nn};
use candle_dynquant_io::keys::Table;
use candle_nn::{Module, VarBuilder};

use super::clip::{self, Tower};
use super::head::{ClassHead, Guesses, Source, two_products};
use super::rows::Rows;
use super::sizes::Sizes;
use super::transformer::Transformer;
use super::view::{Sees, View};
use super::{bert, deberta, decoder, modernbert, nomic, static_embedding, t5};
use crate::keys::Keys;
use crate::modules::LogitScore;
use crate::tables;

/// The rules to detect, read and load a model.
pub(crate) struct Architecture {
    model_types: &'static [&'static str],
    /// A key, with its value or any, that distinguishes it from others with its `model_type`.
    mark: Option<(&'static str, Option<&'static str>)>,
    /// The keys of `config.json`, by the first table that has a row for a key.
    pub tables: &'static [&'static Table],
    /// The prefixes of the tensors in a checkpoint with a head.
    prefixes: &'static [&'static str],
    /// The name of the word table.
    words: &'static str,
    sizes: fn(&Keys) -> Result<Sizes>,
    load: fn(&Keys, &Sizes, VarBuilder<'_>) -> Result<Transformer>,
    head: fn(&Source<'_>) -> Result<Option<ClassHead>>,
    /// The head of the classes of tokens.
    of_tokens: fn(&Source<'_>) -> Result<ClassHead>,
    /// The head that guesses words, if it is known.
    guesses: Option<&'static Guesses>,
    /// The properties of a tower of texts beside one of pictures.
    pub tower: Option<&'static Tower>,
}

/// The answers of a model beside vectors.
pub(crate) enum Answers {
    /// This many classes, if it has a head.
    Classes(usize),
    /// This many classes of each token.
    TokenClasses(usize),
    Score(LogitScore),
    Words,
    /// Vectors of tokens of this many numbers, by a product in the checkpoint (Stanford's ColBERT).
    Vectors(usize),
}

fn roberta_head(source: &Source<'_>) -> Result<Option<ClassHead>> {
    two_products(source, source.vb.pp("classifier.dense"), Tanh, "classifier.out_proj")
}

const WORDS: &str = "embeddings.word_embeddings.weight";

const BERT: Architecture = Architecture {
    model_types: &["bert"],
    mark: None,
    tables: &[&tables::BERT, &tables::COMMON],
    prefixes: &["bert"],
    words: WORDS,
    sizes: bert::sizes,
    load: bert::load,
    head: |it| two_products(it, it.model.pp("pooler.dense"), Tanh, "classifier"),
    of_tokens: |source| Ok(ClassHead::of_first(source.classes("classifier", true)?)),
    guesses: None,
    tower: None,
};

const DECODER: Architecture = Architecture {
    model_types: &["qwen3"],
    mark: None,
    tables: &[&tables::QWEN3, &tables::DECODER, &tables::COMMON],
    prefixes: &["model"],
    words: "embed_tokens.weight",
    sizes: decoder::qwen3_sizes,
    load: decoder::load_qwen3,
    head: decoder::head,
    of_tokens: |source| Ok(ClassHead::of_first(source.classes("score", true)?)),
    guesses: None,
    tower: None,
};

const CLIP: Architecture = Architecture {
    model_types: &["clip"],
    tables: &[&tables::TOWER, &tables::COMMON],
    prefixes: &["text_model"],
    words: "embeddings.token_embedding.weight",
    sizes: clip::sizes,
    load: clip::load,
    head: |_| Ok(None),
    tower: Some(&clip::CLIP),
    ..BERT
};

const JINA_V3: Architecture = Architecture {
    model_types: &["jina_embeddings_v3"],
    tables: &[&tables::JINA_V3, &tables::BERT, &tables::COMMON],
    prefixes: &["roberta"],
    sizes: nomic::jina_sizes,
    load: nomic::load_jina,
    head: roberta_head,
    ..BERT
};

static ALL: [Architecture; 20] = [
    Architecture {
        model_types: &[""],
        mark: Some((static_embedding::TABLE, None)),
        tables: &[&tables::STATIC],
        prefixes: &[],
        sizes: static_embedding::sizes,
        load: static_embedding::load,
        head: |_| Ok(None),
        ..BERT
    },
    Architecture {
        mark: Some(("position_embedding_type", Some("alibi"))),
        tables: &[&tables::JINA, &tables::BERT, &tables::COMMON],
        sizes: bert::jina_sizes,
        load: bert::load_jina,
        ..BERT
    },
    Architecture {
        model_types: &["xlm-roberta"],
        mark: Some(("position_embedding_type", Some("rotary"))),
        sizes: nomic::published_jina_sizes,
        ..JINA_V3
    },
    Architecture { guesses: Some(&bert::GUESSES), ..BERT },
    Architecture {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        tables: &[&tables::ROBERTA, &tables::BERT, &tables::COMMON],
        prefixes: &["roberta"],
        sizes: bert::roberta_sizes,
        load: bert::load_roberta,
        head: roberta_head,
        guesses: Some(&bert::ROBERTA_GUESSES),
        ..BERT
    },
    Architecture {
        model_types: &["electra"],
        tables: &[&tables::ELECTRA, &tables::BERT, &tables::COMMON],
        prefixes: &["electra"],
        sizes: bert::electra_sizes,
        load: bert::load_electra,
        head: |it| two_products(it, it.vb.pp("classifier.dense"), Gelu, "classifier.out_proj"),
        ..BERT
    },
    Architecture {
        model_types: &["albert"],
        tables: &[&tables::ALBERT, &tables::BERT, &tables::COMMON],
        prefixes: &["albert"],
        sizes: bert::albert_sizes,
        load: bert::load_albert,
        head: |it| two_products(it, it.model.pp("pooler"), Tanh, "classifier"),
        ..BERT
    },
    Architecture {
        model_types: &["deberta-v2"],
        tables: &[&tables::DEBERTA, &tables::BERT, &tables::COMMON],
        prefixes: &["deberta"],
        sizes: deberta::sizes,
        load: deberta::load,
        head: deberta::head,
        ..BERT
    },
    Architecture {
        model_types: &["distilbert"],
        tables: &[&tables::DISTILBERT, &tables::COMMON],
        prefixes: &["distilbert"],
        sizes: bert::distilbert_sizes,
        load: |_, sizes, vb| {
            bert::transformer(sizes, &bert::DISTILBERT, None, View::plain(Sees::All), &vb)
        },
        head: |it| two_products(it, it.vb.pp("pre_classifier"), Relu, "classifier"),
        guesses: Some(&bert::DISTILBERT_GUESSES),
        ..BERT
    },
    Architecture {
        model_types: &["mpnet"],
        tables: &[&tables::ROBERTA, &tables::BERT, &tables::COMMON],
        prefixes: &["mpnet"],
        sizes: bert::mpnet_sizes,
        load: bert::load_mpnet,
        head: roberta_head,
        ..BERT
    },
    Architecture {
        model_types: &["modernbert"],
        prefixes: &["model"],
        words: "embeddings.tok_embeddings.weight",
        sizes: modernbert::sizes,
        load: modernbert::load,
        head: modernbert::head,
        of_tokens: modernbert::any_head,
        mark: None,
        guesses: Some(&modernbert::GUESSES),
        tower: None,
        tables: &[&tables::MODERNBERT, &tables::BERT, &tables::COMMON],
    },
    Architecture {
        model_types: &["nomic_bert"],
        tables: &[&tables::NOMIC, &tables::BERT, &tables::COMMON],
        prefixes: &["bert", "nomic_bert"],
        sizes: nomic::sizes,
        load: nomic::load,
        ..BERT
    },
    Architecture {
        model_types: &["new", "gte"],
        tables: &[&tables::GTE, &tables::BERT, &tables::COMMON],
        prefixes: &["new", "gte"],
        sizes: nomic::gte_sizes,
        load: nomic::load_gte,
        ..BERT
    },
    Architecture {
        model_types: &["t5"],
        tables: &[&tables::T5, &tables::COMMON],
        prefixes: &[],
        words: "shared.weight",
        sizes: t5::sizes,
        load: t5::load,
        head: |_| Ok(None), // T5 classifies by its decoder.
        ..BERT
    },
    Architecture {
        model_types: &["eurobert"],
        tables: &[&tables::EUROBERT, &tables::DECODER, &tables::COMMON],
        sizes: decoder::eurobert_sizes,
        load: decoder::load_eurobert,
        head: decoder::eurobert_head,
        of_tokens: BERT.of_tokens,
        ..DECODER
    },
    DECODER,
    Architecture {
        model_types: &["gemma3_text"],
        tables: &[&tables::GEMMA3, &tables::DECODER, &tables::COMMON],
        sizes: decoder::gemma3_sizes,
        load: decoder::load_gemma3,
        ..DECODER
    },
    CLIP,
    Architecture { model_types: &["siglip"], tower: Some(&clip::SIGLIP), ..CLIP },
    JINA_V3,
];

#[derive(Clone, Quantizable)]
pub(crate) struct Network {
    pub model: Transformer,
    pub head: Option<ClassHead>,
    /// The head of each token: of its class, or that guesses words, for sparse vectors.
    pub of_tokens: Option<ClassHead>,
    /// The product that makes shorter vectors of tokens.
    pub projection: Option<nn::Linear>,
    /// The product behind the pooling of a tower.
    pub pooled_projection: Option<nn::Linear>,
}

impl Network {
    /// The vectors of all tokens.
    pub fn forward(&self, rows: &Rows) -> CandleResult<Tensor> {
        let hidden = self.model.forward(rows)?;
        match &self.projection {
            Some(projection) => projection.forward(&hidden),
            None => Ok(hidden),
        }
    }
}

impl Architecture {
    pub fn find(keys: &Keys) -> Result<&'static Self> {
        let model_type = keys.word("model_type")?.unwrap_or_default();
        let is_marked = |it: &Self| match it.mark {
            Some((key, word)) => (keys.get(key)).is_some_and(|got| word.is_none_or(|it| got == it)),
            None => true,
        };
        let mut all = ALL.iter();
        let known = all.find(|it| it.model_types.contains(&&*model_type) && is_marked(it));
        known.ok_or_else(|| {
            let plain = ALL.iter().filter(|it| it.mark.is_none());
            let types: Vec<&str> = plain.flat_map(|it| it.model_types).copied().collect();
            keys.fault("model_type", &format!("one of {}", types.join(", ")))
        })
    }

    pub fn sizes(&self, keys: &Keys) -> Result<Sizes> {
        (self.sizes)(keys)
    }

    pub fn load(
        &self,
        keys: &Keys,
        sizes: &Sizes,
        answers: Answers,
        vb: VarBuilder<'_>,
    ) -> Result<Network> {
        let below = self.prefixes.iter().map(|prefix| vb.pp(prefix));
        let mut below = below.filter(|vb| vb.contains_tensor(self.words));
        let model = below.next().unwrap_or_else(|| vb.clone());
        let transformer = (self.load)(keys, sizes, model.clone())?;
        let pooled_projection = self.tower.map(|tower| tower.project(keys, sizes, &vb, &model));
        let pooled_projection = pooled_projection.transpose()?;
        let source = Source {
            keys,
            sizes,
            labels: match answers {
                Answers::Classes(labels) | Answers::TokenClasses(labels) => labels,
                Answers::Score(_) | Answers::Words | Answers::Vectors(_) => 0,
            },
            vb,
            model,
        };
        let words = &transformer.embeddings.words;
        let mut projection = None;
        let (head, of_tokens) = match answers {
            Answers::TokenClasses(_) => (None, Some((self.of_tokens)(&source)?)),
            Answers::Vectors(size) => {
                projection = Some(sizes.linear(size, false, source.vb.pp("linear"))?);
                (None, None)
            }
            Answers::Classes(_) => ((self.head)(&source)?, None),
            Answers::Score(score) => (Some(source.logit_score(score, words)?), None),
            Answers::Words => {
                let known = ALL.iter().filter(|it| it.guesses.is_some());
                let known: Vec<&str> = known.flat_map(|it| it.model_types).copied().collect();
                let expected = format!("one of {} before SpladePooling", known.join(", "));
                let guesses = self.guesses;
                let guesses = guesses.ok_or_else(|| keys.fault("model_type", &expected))?;
                (None, Some(guesses.load(&source, words)?))
            }
        };
        Ok(Network { model: transformer, head, of_tokens, projection, pooled_projection })
    }
}
