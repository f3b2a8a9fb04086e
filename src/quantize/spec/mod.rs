//! Which layers get which `QConfig`: rules and their precedence.

pub(crate) mod decision;
mod file;
mod hint;
mod rule;
mod target;

use std::collections::BTreeMap;
use std::fmt;

use super::outcome::LeftReason;
use super::survey::{FoundLayer, Survey};
use crate::error::{Error, Fault, Result};
use crate::module::LayerKind;
use crate::name_regex::{NameRegex, RegexTotals};
use crate::qconfig::{OnnxRuntimeOptions, QConfig};
use crate::sizes::at_most;
use crate::words::{Words, lookup, names};
use decision::{Decision, Refusal};
pub(crate) use hint::with_hidden;
use rule::{Pattern, Rank, Rule};
use target::OneTarget;
pub use target::{OneOrMany, Target};

/// Which layers of a model are quantized, and how; PyTorch's `qconfig_spec`.
///
/// A rule gives a [`QConfig`], or `None` to keep float, to the layers of a kind, to a dotted
/// name and everything below it, or to the names that a regex finds. Where several rules
/// match a layer, the most specific wins: exact name, then regex (a later one wins), then the
/// nearest name above, then kind. Names are paths in the model or the checkpoint names that layers
/// were loaded under; the name `""` covers the whole model.
///
/// ```
/// use candle_dynquant::{LayerKind, QConfig, QConfigSpec};
///
/// let spec = QConfigSpec::int8()
///     .exclude(["encoder.layer.0", "classifier"])           // keep these float
///     .regex(r"\.output\.dense$", QConfig::per_channel())
///     .kind(LayerKind::LSTM, QConfig::pytorch())
///     .min_params(1_000);                                   // leave smaller layers
/// assert_eq!(spec.to_string().lines().count(), 15);
/// ```
///
#[doc = include_str!("forms.md")]
#[derive(Clone, Debug, PartialEq)]
pub struct QConfigSpec {
    /// The configuration of each kind in a preset; these may match nothing.
    presets: BTreeMap<LayerKind, QConfig>,
    rules: Vec<Rule>,
    regexes: RegexTotals,
    min_params: usize,
    /// The configuration of output projections, where a preset gives them another than their kind.
    head: Option<QConfig>,
}

/// How many rules a spec may have; each is compared with every name of the model.
const MAX_RULES: usize = 10_000;

/// Weight elements from which an int8 layer is faster than a float one in calls of any number of
/// rows.
const WORTHWHILE: usize = 1_000;

impl QConfigSpec {
    /// The presets.
    const NAMED: Words<fn() -> Self, 9> = [
        ("int8", Self::int8),
        ("int8_reduce_range", Self::int8_reduce_range),
        ("int8_groups", Self::int8_groups),
        ("int4", Self::int4),
        ("pytorch", Self::pytorch),
        ("per_channel", || Self::default_kinds(QConfig::per_channel())),
        ("float16", Self::float16),
        ("bfloat16", Self::bfloat16),
        ("onnxruntime", Self::onnxruntime),
    ];

    /// The names that [`preset`](Self::preset) knows.
    #[doc(hidden)]
    pub const PRESETS: [&'static str; 9] = names(&Self::NAMED);

    /// No rules: add them with [`kind`](Self::kind), [`name`](Self::name) and
    /// [`regex`](Self::regex).
    #[expect(
        clippy::new_without_default,
        reason = "PyTorch's default spec is `pytorch()`, not an empty one"
    )]
    pub fn new() -> Self {
        Self {
            presets: BTreeMap::new(),
            rules: Vec::new(),
            regexes: RegexTotals::default(),
            min_params: 0,
            head: None,
        }
    }

    /// The recommended preset: [`QConfig::int8`] for every kind that multiplies,
    /// including [`RNN`](LayerKind::RNN) and convolutions, which PyTorch omits.
    ///
    /// Convolutions of fewer than 32 input channels of a group, as depthwise ones, or of fewer than
    /// 64 products for each value that they read or write, as of size 1 from 64 channels to 64, stay
    /// float: they would take more time (`cargo bench --bench convolution`).
    ///
    /// Layers of fewer than 1,000 weight elements stay float: in calls of many rows they would take
    /// more time, and some more memory (`cargo bench --bench narrow`).
    /// [`min_params(0)`](Self::min_params) quantizes them too. A larger Linear of up to 4 outputs may
    /// take more memory, too, since outputs are padded to 16 with AVX-512: one of 1,024 inputs and 1
    /// output 16 KiB in place of 4. [`exclude`](Self::exclude) keeps it float.
    pub fn int8() -> Self {
        Self::of_int8(QConfig::int8())
    }

    /// These codes for every kind that gains from them.
    fn of_int8(qconfig: QConfig) -> Self {
        let spec = Self::all_kinds(qconfig.clone()).min_params(WORTHWHILE);
        spec.presets(LayerKind::CONVOLUTIONS, &qconfig)
    }

    /// [`QConfig::int4`] for every kind that multiplies: weights of 4.5 bits; of the output
    /// [projection](Self::head), which costs most accuracy, [`QConfig::int8`].
    ///
    /// Layers of fewer than 1,000 weight elements stay float, as in [`int8`](Self::int8).
    pub fn int4() -> Self {
        Self::all_kinds(QConfig::int4()).min_params(WORTHWHILE).head(QConfig::int8())
    }

    /// [`QConfig::int8_groups`] for every kind that multiplies: weights of 8.5 bits.
    ///
    /// Layers of fewer than 1,000 weight elements stay float, as in [`int8`](Self::int8).
    pub fn int8_groups() -> Self {
        Self::all_kinds(QConfig::int8_groups()).min_params(WORTHWHILE)
    }

    /// PyTorch's `qconfig_spec=None`: six kinds with [`QConfig::pytorch`].
    pub fn pytorch() -> Self {
        Self::default_kinds(QConfig::pytorch())
    }

    /// [`int8`](Self::int8) with [weights of a reduced range](QConfig::reduce_range): faster on
    /// x86-64 CPUs without VNNI, less accurate on all.
    pub fn int8_reduce_range() -> Self {
        Self::of_int8(QConfig::int8().reduce_range())
    }

    /// Half-precision weights for every kind that multiplies: PyTorch's `dtype=torch.float16`.
    pub fn float16() -> Self {
        Self::all_kinds(QConfig::float16())
    }

    /// bfloat16 weights and activations for every kind that multiplies: see
    /// [`QConfig::bfloat16`].
    pub fn bfloat16() -> Self {
        Self::all_kinds(QConfig::bfloat16())
    }

    /// ONNX Runtime's `quantize_dynamic` with its defaults, for every kind that multiplies, and for
    /// convolutions that are not transposed: it knows Linear (as MatMul), Conv and LSTM alone. With
    /// other options: `QConfigSpec::all_kinds(QConfig::onnxruntime(options))`.
    pub fn onnxruntime() -> Self {
        let qconfig = QConfig::onnxruntime(OnnxRuntimeOptions::DEFAULT);
        Self::all_kinds(qconfig.clone()).presets([LayerKind::Conv1d, LayerKind::Conv2d], &qconfig)
    }

    /// PyTorch's six default kinds, all with `qconfig`.
    #[doc(hidden)]
    pub fn default_kinds(qconfig: QConfig) -> Self {
        Self::new().presets(LayerKind::DEFAULT, &qconfig)
    }

    /// The seven kinds that multiply by weights, all with `qconfig`: neither embeddings nor
    /// attention.
    pub fn all_kinds(qconfig: QConfig) -> Self {
        Self::new().presets(LayerKind::MULTIPLYING, &qconfig)
    }

    /// These kinds or names only, one or several, all with `qconfig`: PyTorch's set. Unlike
    /// a preset, each must be in the model.
    ///
    /// ```
    /// use candle_dynquant::{LayerKind, QConfig, QConfigSpec, Target};
    ///
    /// let kinds = QConfigSpec::of([LayerKind::Linear, LayerKind::LSTM], QConfig::int8());
    /// let names = QConfigSpec::of(["encoder", "classifier"], QConfig::float16());
    /// let one = QConfigSpec::of("encoder", QConfig::float16());
    /// let both = QConfigSpec::of([Target::from(LayerKind::Linear), "rnn".into()], QConfig::pytorch());
    /// ```
    pub fn of(targets: impl OneOrMany<Target>, qconfig: QConfig) -> Self {
        Self::new().targets(targets.items(), &Some(qconfig))
    }

    fn targets(self, targets: Vec<Target>, qconfig: &Option<QConfig>) -> Self {
        targets.into_iter().fold(self, |spec, target| {
            let pattern = match target.0 {
                OneTarget::Kind(kind) => Pattern::Kind(kind),
                OneTarget::Name(name) => Pattern::Name(name),
            };
            spec.rule(pattern, qconfig.clone())
        })
    }

    /// The preset of that name: `int8`, `int8_groups`, `int4`, `int8_reduce_range`, `pytorch`,
    /// `per_channel`, `float16`, `bfloat16` or `onnxruntime`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for any other name, with the
    /// nearest of these.
    pub fn preset(name: &str) -> Result<Self> {
        // PyTorch's default.
        let name = if name == "default" { "pytorch" } else { name };
        lookup("preset", name, Self::NAMED).map(|preset| preset())
    }

    /// Adds embeddings, which are off by default: [`QConfig::table`] without
    /// its [minimum](QConfig::eps) of the scale for all of them; the model need not have any.
    #[must_use]
    pub fn embeddings(self) -> Self {
        self.presets([LayerKind::Embedding], &Self::tables())
    }

    /// Adds attention, [`nn::Attention`](crate::nn::Attention), which is off by default: in
    /// bfloat16 where the preset has half-precision weights, else in 8 bits; the model need not
    /// have any.
    ///
    /// ```
    /// use candle_dynquant::{LayerKind, QConfig, QConfigSpec};
    ///
    /// let spec = QConfigSpec::int8().attention().exclude("encoder.layer.0");
    /// let bfloat16 = QConfigSpec::int8().kind(LayerKind::Attention, QConfig::bfloat16());
    /// ```
    #[must_use]
    pub fn attention(self) -> Self {
        let qconfig = self.of_attention();
        self.presets([LayerKind::Attention], &qconfig)
    }

    /// The configuration of [`attention`](Self::attention).
    fn of_attention(&self) -> QConfig {
        let mut configs = self.presets.values();
        if configs.any(|qconfig| matches!(qconfig, QConfig::Half(_))) {
            QConfig::bfloat16()
        } else {
            QConfig::int8()
        }
    }

    /// The configuration of [`embeddings`](Self::embeddings).
    const fn tables() -> QConfig {
        QConfig::table().eps(QConfig::MIN_EPS)
    }

    fn presets(mut self, kinds: impl IntoIterator<Item = LayerKind>, qconfig: &QConfig) -> Self {
        self.presets.extend(kinds.into_iter().map(|kind| (kind, qconfig.clone())));
        self
    }

    /// Gives kinds, which the model need not have, a configuration, or keeps them float.
    pub(crate) fn presets_or_float(
        mut self,
        kinds: Vec<LayerKind>,
        qconfig: Option<QConfig>,
    ) -> Self {
        match qconfig {
            Some(qconfig) => self.presets(kinds, &qconfig),
            None => {
                self.presets.retain(|kind, _| !kinds.contains(kind));
                self
            }
        }
    }

    /// Adds a rule for all layers of a kind, or of each of several; `None` keeps them float.
    #[must_use]
    pub fn kind(
        self,
        kinds: impl OneOrMany<LayerKind>,
        qconfig: impl Into<Option<QConfig>>,
    ) -> Self {
        self.targets(kinds.items().into_iter().map(Target::from).collect(), &qconfig.into())
    }

    /// Adds a rule for a name and everything below it; `None` keeps it float.
    #[must_use]
    pub fn name(self, name: impl Into<String>, qconfig: impl Into<Option<QConfig>>) -> Self {
        self.rule(Pattern::Name(name.into()), qconfig.into())
    }

    /// Adds a rule for the names in which a [regex](https://docs.rs/regex) finds a match,
    /// anywhere unless it is anchored; `None` keeps them float.
    #[must_use]
    pub fn regex(self, pattern: impl Into<String>, qconfig: impl Into<Option<QConfig>>) -> Self {
        self.rule(Pattern::Regex(NameRegex::new(&pattern.into())), qconfig.into())
    }

    /// Keeps names float, one or several, each with everything below it, or kinds:
    /// [`name`](Self::name) or [`kind`](Self::kind) with `None`. Each must be in the model.
    #[must_use]
    pub fn exclude(self, targets: impl OneOrMany<Target>) -> Self {
        self.targets(targets.items(), &None)
    }

    /// Gives the output projection of a language model another configuration than a preset gives to
    /// Linears: one whose name is or ends in `lm_head` or `embed_out`, or that shares the matrix of
    /// an embedding. A rule by kind or name comes before; `None` treats it as any Linear.
    #[must_use]
    pub fn head(mut self, qconfig: impl Into<Option<QConfig>>) -> Self {
        self.head = qconfig.into();
        self
    }

    /// Leaves layers with fewer weight elements than this, not counting biases; 0 leaves none.
    /// Attention, which has none, is not concerned. A
    /// layer that a rule matches by its exact name is swapped regardless.
    #[must_use]
    pub fn min_params(mut self, elements: usize) -> Self {
        self.min_params = elements;
        self
    }

    fn rule(mut self, pattern: Pattern, qconfig: Option<QConfig>) -> Self {
        self.push(Rule { pattern, qconfig });
        self
    }

    fn push(&mut self, rule: Rule) {
        if let Pattern::Regex(regex) = &rule.pattern {
            self.regexes.add(regex);
        }
        self.rules.push(rule);
    }

    /// Rejects excessive numbers of rules: each costs time, and a regex memory.
    fn check_counts(&self) -> Result<()> {
        at_most("number of rules", MAX_RULES, self.rules.len())?;
        self.regexes.check()
    }

    /// Checks what can be checked without a model.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.rules.iter().try_for_each(|rule| match &rule.pattern {
            Pattern::Regex(regex) => regex.compiled().map(drop),
            Pattern::Kind(_) | Pattern::Name(_) => Ok(()),
        })
    }

    /// Decides for every layer, or returns the rule at fault.
    pub(crate) fn resolve(&self, survey: &Survey) -> Result<Vec<Decision>> {
        self.check()?;
        for Rule { pattern, .. } in &self.rules {
            if !survey.layers.iter().any(|l| pattern.rank(l).is_some()) {
                let (rule, hint) = (pattern.to_string(), pattern.hint(survey));
                return Err(Error::from(Fault::UnmatchedRule { rule, hint }));
            }
        }
        let layers = survey.layers.iter();
        let decisions: Vec<_> = layers.map(|layer| self.decide(layer, survey)).collect();
        if decisions.iter().any(Decision::is_quantized) {
            Ok(decisions)
        } else {
            let hint = hint::nothing_matched(survey, &decisions);
            Err(Error::from(Fault::NothingMatched { hint }))
        }
    }

    /// The configuration of a layer that no rule matches.
    fn preset_of(&self, layer: &FoundLayer, survey: &Survey) -> Option<&QConfig> {
        let of_kind = self.presets.get(&layer.kind)?;
        match &self.head {
            Some(head) if survey.is_head(layer) => Some(head),
            _ => Some(of_kind),
        }
    }

    fn decide(&self, layer: &FoundLayer, survey: &Survey) -> Decision {
        let matching = self.rules.iter().filter_map(|rule| Some((rule, rule.pattern.rank(layer)?)));
        // `max_by_key` keeps the last of equals: a later rule of the same rank wins.
        let (qconfig, exact) = match matching.max_by_key(|(_, rank)| *rank) {
            Some((rule, rank)) => match &rule.qconfig {
                Some(qconfig)
                    if layer.is_convolution()
                        && matches!(rank, Rank::Ancestor(_) | Rank::Regex)
                        && !matches!(qconfig, QConfig::Int8 { .. }) =>
                {
                    return Decision::Leave(LeftReason::of_format(qconfig));
                }
                // A rule for a part of the model is one for its weights, too.
                Some(qconfig)
                    if layer.precision.is_some()
                        && matches!(rank, Rank::Ancestor(_) | Rank::Regex)
                        && qconfig.precision().is_err() =>
                {
                    let qconfig = qconfig.to_string();
                    return Decision::Leave(LeftReason::NoPrecision { qconfig });
                }
                Some(qconfig) => (qconfig, rank == Rank::Exact),
                None => {
                    let rule = rule.pattern.to_string();
                    return Decision::Leave(LeftReason::KeptFloat { rule });
                }
            },
            None => match self.preset_of(layer, survey) {
                Some(qconfig) => (qconfig, false),
                None if layer.kind == LayerKind::Embedding => {
                    return Decision::Leave(LeftReason::OffByDefault { by: "embeddings" });
                }
                None if layer.kind == LayerKind::Attention => {
                    return Decision::Leave(LeftReason::OffByDefault { by: "attention" });
                }
                None => return Decision::Leave(LeftReason::NoRule),
            },
        };
        let parameters = layer.parameters();
        if layer.is_quantized() {
            Decision::Leave(LeftReason::AlreadyQuantized)
        } else if let Some(reason) = layer.loses(qconfig).filter(|_| !exact) {
            Decision::Leave(reason)
        } else if layer.precision.is_none() && parameters < self.min_params && !exact {
            Decision::Leave(LeftReason::TooSmall { parameters, min_params: self.min_params })
        } else {
            let qconfig = qconfig.clone();
            let refusal = if exact { Refusal::Fails } else { Refusal::LeavesAtLimit };
            Decision::Swap { qconfig, refusal }
        }
    }
}

/// A rule on each line.
impl fmt::Display for QConfigSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Attention has no weight that a configuration would describe.
        let words = |kind: Option<&LayerKind>, qconfig: &QConfig| match qconfig.precision() {
            Ok(precision) if kind == Some(&LayerKind::Attention) => precision.to_string(),
            _ => qconfig.to_string(),
        };
        for (kind, qconfig) in &self.presets {
            writeln!(f, "kind {kind}: {}", words(Some(kind), qconfig))?;
        }
        if let Some(head) = &self.head {
            writeln!(f, "output projection: {head}")?;
        }
        for rule in &self.rules {
            let kind = match &rule.pattern {
                Pattern::Kind(kind) => Some(kind),
                _ => None,
            };
            match &rule.qconfig {
                Some(qconfig) => writeln!(f, "{}: {}", rule.pattern, words(kind, qconfig))?,
                None => writeln!(f, "{}: keep float", rule.pattern)?,
            }
        }
        if self.min_params > 0 {
            writeln!(f, "fewer than {} weight elements: keep float", self.min_params)?;
        }
        Ok(())
    }
}
