//! Neural Compressor's YAML, of its versions 1.x.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{TuningConfig, wise};
use crate::document::{Map, Node, Read, Value};
use crate::error::{Result, did_you_mean};
use crate::tune::criterion::Goal;
use crate::tune::strategy::Strategy;
use crate::words::{lookup, suggestion};

const DYNAMIC: &str = "post_training_dynamic_quant";
const APPROACHES: [&str; 4] =
    [DYNAMIC, "post_training_static_quant", "post_training_auto_quant", "quant_aware_training"];
const FRAMEWORKS: [&str; 11] = [
    "tensorflow",
    "tensorflow_itex",
    "inteltensorflow",
    "keras",
    "mxnet",
    "pytorch",
    "pytorch_fx",
    "pytorch_ipex",
    "onnxrt_integerops",
    "onnxrt_qlinearops",
    "onnxrt_qdq",
];
const SECONDS: &str = "a number of seconds, 0 or more";

impl TuningConfig {
    /// Reads Neural Compressor's YAML, as its documentation has it.
    ///
    /// ```
    /// use candle_dynquant::TuningConfig;
    ///
    /// let config = TuningConfig::from_yaml(r"
    /// model:
    ///   name: bert
    ///   framework: onnxrt_integerops
    /// quantization:
    ///   approach: post_training_dynamic_quant
    ///   calibration:
    ///     sampling_size: 8, 16, 32
    ///   optype_wise:
    ///     Embedding: {weight: {dtype: [uint8]}}
    ///   op_wise:                                   # regexes that match a whole name
    ///     bert.encoder.layer.0.*: {weight: {dtype: [fp32]}, activation: {dtype: [fp32]}}
    /// tuning:
    ///   strategy: {name: basic}
    ///   accuracy_criterion: {relative: 1%, higher_is_better: true}
    ///   exit_policy: {timeout: 0, max_trials: 600, performance_only: false}
    ///   random_seed: 9527
    ///   workspace: {path: ./workspace}
    /// ")?;
    /// assert_eq!(config.ignored().len(), 4);
    /// assert!(config.ignored()[0].contains("`model.name` is ignored: "));
    ///
    /// let typo = TuningConfig::from_yaml("tuning:\n  exit_polcy: {timeout: 0}").unwrap_err();
    /// assert!(typo.to_string().starts_with("line 2, column 3, tuning.exit_polcy: unknown key"));
    /// assert!(typo.to_string().ends_with("did you mean `exit_policy`?"));
    /// # Ok::<(), candle_dynquant::Error>(())
    /// ```
    ///
    /// Without a section `quantization`, quantization is dynamic. A history, `history.jsonl`, is
    /// written to the folder `workspace.path`, which must exist; `workspace.resume` continues one.
    /// Strategies are `sensitivity`, also under the names `mse`, `mse_v2` and `hawq_v2`; `basic`;
    /// and `by_kind`, also under the name `conservative`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig), with line, column and key,
    /// where the text is not YAML, a key, a word or a value in it means nothing, or another
    /// approach is asked for.
    pub fn from_yaml(text: &str) -> Result<Self> {
        Self::read(&Node::from_yaml(text)?)
    }

    /// Reads a file of that YAML that ends in `.yaml` or `.yml`, or of the same keys in JSON.
    ///
    /// # Errors
    /// As from YAML, and when the file cannot be read; [`Error::file`](crate::Error::file) says
    /// which file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let config = Node::from_file(path).and_then(|node| Self::read(&node));
        config.map_err(|e| e.in_file(path))
    }

    /// The values at these keys, if there are some, mean nothing.
    pub(super) fn ignore(&mut self, map: &Map<'_>, keys: &str, reason: &str) {
        for node in keys.split(", ").filter_map(|key| map.get(key)) {
            self.ignore_node(node, reason);
        }
    }

    pub(super) fn ignore_node(&mut self, node: &Node, reason: &str) {
        let (line, key) = (node.line(), node.key());
        let ignored = format!("line {line}: `{key}` is ignored: {reason}");
        self.ignored.push(ignored);
    }
}

impl Read for TuningConfig {
    fn read(node: &Node) -> Result<Self> {
        let keys = "version, model, device, quantization, tuning, evaluation";
        let map = node.map("a configuration", keys)?;
        let mut config = Self::default();
        config.ignore(&map, "version", "all versions 1.x are read alike");
        map.read("model", |node| config.read_model(node))?;
        if let Some(device) = map.get("device")
            && device.text("a device")? != "cpu"
        {
            return Err(device.unexpected("cpu, the only device of dynamic quantization"));
        }
        map.read("quantization", |node| config.read_quantization(node))?;
        map.read("tuning", |node| config.read_tuning(node))?;
        config.ignore(&map, "evaluation", "the evaluation is a function of yours");
        Ok(config)
    }
}

impl TuningConfig {
    fn read_model(&mut self, node: &Node) -> Result<()> {
        let keys = "name, framework, inputs, outputs";
        let map = node.map("a model", keys)?;
        map.read("name", |n| n.text("a name").map(drop))?;
        map.read("framework", |n| {
            let known = FRAMEWORKS.map(|name| (name, ()));
            n.word("a framework", |word| lookup("framework", word, known))
        })?;
        self.ignore(&map, keys, "the model is candle's");
        Ok(())
    }

    fn read_quantization(&mut self, node: &Node) -> Result<()> {
        let keys = "approach, calibration, recipes, model_wise, optype_wise, op_wise";
        let map = node.map("how to quantize", keys)?;
        let hint = format!(
            "expected `{DYNAMIC}`; Neural Compressor's default is static quantization, which is not offered"
        );
        check_approach(map.require("approach", &hint)?)?;
        if let Some(calibration) = map.get("calibration") {
            let keys = "sampling_size, dataloader";
            let map = calibration.map("a calibration", keys)?;
            map.read("sampling_size", check_sizes)?;
            self.ignore(&map, keys, "dynamic quantization does not calibrate");
        }
        self.ignore(&map, "recipes", "recipes are for static quantization");
        wise::read(self, &map)
    }

    fn read_tuning(&mut self, node: &Node) -> Result<()> {
        let keys = "strategy, accuracy_criterion, objective, multi_objectives, exit_policy, \
                    random_seed, tensorboard, workspace, diagnosis";
        let map = node.map("how to tune", keys)?;
        map.read("strategy", |node| self.read_strategy(node))?;
        map.read("accuracy_criterion", |node| self.read_criterion(node))?;
        let reason = "of two models that pass, the one of fewer bytes is better";
        self.ignore(&map, "objective, multi_objectives", reason);
        map.read("exit_policy", |node| self.read_exit_policy(node))?;
        map.read("random_seed", |n| n.integer("a whole number", |_: &i64| true))?;
        let reason = "no strategy draws random numbers, so every search can be repeated";
        self.ignore(&map, "random_seed", reason);
        let reason = "`inspect` shows what quantization does to each layer";
        self.ignore(&map, "tensorboard, diagnosis", reason);
        map.read("workspace", |node| self.read_workspace(node)).map(drop)
    }

    fn read_strategy(&mut self, node: &Node) -> Result<()> {
        let name = match node.value {
            Value::Map(_) => {
                let map = node.map("a strategy", "name, confidence_batches, hawq_v2_loss")?;
                let reason = "layers are ranked on the inputs of the first evaluation";
                self.ignore(&map, "confidence_batches, hawq_v2_loss", reason);
                map.require("name", "expected basic, sensitivity or by_kind")?
            }
            _ => node,
        };
        self.strategy = name.word("a strategy", |word| {
            let words = [
                ("basic", Strategy::Basic),
                ("sensitivity", Strategy::Sensitivity),
                ("by_kind", Strategy::ByKind),
                ("mse", Strategy::Sensitivity),
                ("mse_v2", Strategy::Sensitivity),
                ("hawq_v2", Strategy::Sensitivity),
                ("conservative", Strategy::ByKind),
            ];
            lookup("strategy", word, words)
        })?;
        Ok(())
    }

    fn read_criterion(&mut self, node: &Node) -> Result<()> {
        let map = node.map("a criterion", "relative, absolute, higher_is_better")?;
        let higher = map.read("higher_is_better", Node::bool)?;
        self.criterion.higher_is_better = higher.unwrap_or(self.criterion.higher_is_better);
        let expected = "a share between -1 and 1, as 0.01 or 1%";
        let valid = |share: &f64| share.abs() < 1.;
        let relative = map.read("relative", |n| match &n.value {
            Value::Text(text) => {
                let share = percent(text).filter(valid);
                share.ok_or_else(|| n.unexpected(expected))
            }
            _ => n.number(expected, valid),
        })?;
        let finite = |difference: &f64| difference.is_finite();
        let absolute = map.read("absolute", |n| n.number("a number", finite))?;
        match (relative, absolute) {
            (Some(_), Some(_)) => {
                return Err(node.fault("expected one of the keys relative, absolute, got both"));
            }
            (Some(share), None) => self.criterion.goal = Goal::Relative(share),
            (None, Some(difference)) => self.criterion.goal = Goal::Absolute(difference),
            (None, None) => {}
        }
        Ok(())
    }

    fn read_exit_policy(&mut self, node: &Node) -> Result<()> {
        let keys = "timeout, max_trials, performance_only";
        let map = node.map("an exit policy", keys)?;
        if let Some(timeout) = map.get("timeout") {
            let seconds = timeout.number(SECONDS, |seconds| *seconds >= 0.)?;
            let duration = Duration::try_from_secs_f64(seconds);
            self.timeout = duration.map_err(|_| timeout.unexpected(SECONDS))?;
        }
        let trials = |n: &Node| n.integer("a whole number, 1 or more", |trials| *trials > 0);
        self.max_trials = map.read("max_trials", trials)?.unwrap_or(self.max_trials);
        if map.read("performance_only", Node::bool)? == Some(true) {
            self.max_trials = 1;
        }
        Ok(())
    }

    fn read_workspace(&mut self, node: &Node) -> Result<()> {
        let map = node.map("a workspace", "path, resume")?;
        let folder = map.read("path", |n| n.text("a folder").map(PathBuf::from))?;
        let resume = map.read("resume", |n| n.text("a history's path").map(PathBuf::from))?;
        let config = std::mem::take(self);
        *self = match (folder, resume) {
            (_, Some(history)) => config.resume(history),
            (Some(folder), None) => config.history(folder.join("history.jsonl")),
            (None, None) => config,
        };
        Ok(())
    }
}

fn check_approach(node: &Node) -> Result<()> {
    match node.text("an approach")? {
        DYNAMIC => Ok(()),
        other if APPROACHES.contains(&other) => {
            Err(node.fault(format!("approach `{other}` is not offered: expected `{DYNAMIC}`")))
        }
        other => {
            let hint = did_you_mean(suggestion(other, APPROACHES));
            Err(node.fault(format!("unknown approach {other:?}: expected `{DYNAMIC}`{hint}")))
        }
    }
}

/// `8`, `8, 16, 32`, `8 16 32` or a list.
fn check_sizes(node: &Node) -> Result<()> {
    let expected = "one or several whole numbers, 1 or more";
    let check = |n: &Node| n.integer(expected, |size: &u64| *size > 0).map(drop);
    match &node.value {
        Value::List(sizes) => sizes.iter().try_for_each(check),
        Value::Text(text) => {
            let sizes = text.split([',', ' ']).filter(|size| !size.is_empty());
            let sizes: Vec<Option<u64>> = sizes.map(|size| size.parse().ok()).collect();
            if !sizes.is_empty() && sizes.iter().all(|size| size.is_some_and(|s| s > 0)) {
                Ok(())
            } else {
                Err(node.unexpected(expected))
            }
        }
        _ => check(node),
    }
}

/// `1%` as 0.01.
fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
    Some(number / 100.)
}
