//! `embed` and `classify` as functions of SQL.
//!
//! When a query is planned, a call gets a second argument, a literal that names its model. An
//! executor with another model returns an error, so that a result never mixes two models. A literal
//! reaches every executor: Ballista sends functions only by name within its operators.
//!
//! A batch is computed on the thread that requests it, which does nothing else meanwhile. There is
//! one such thread for each partition, and no more partitions at a time than cores; executors send
//! heartbeats from other threads. Separate threads for the model would only move the work. The
//! library's threads help the partition that finds them free.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, StringArray,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{
    Result, ScalarValue, exec_datafusion_err, exec_err, plan_datafusion_err, plan_err,
};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, lit,
};
use dynquant_embed::Head;
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::model::LoadedModel;

/// The information about a call in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Declaration {
    /// The model of the query.
    pub model: Identity,
    /// The length of an embedding.
    pub embedding_size: usize,
    /// Whether the model has a classification head.
    pub is_classifier: bool,
    /// Whether texts that are too long are cut.
    pub truncate: bool,
}

/// The kind of answer that a function gives: an embedding, or the name of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Embed,
    Classify,
}

/// A function from texts to answers.
#[derive(Clone, Debug)]
pub struct TextFunction {
    kind: Kind,
    /// The declaration of calls in queries that are planned here.
    planned: Option<Declaration>,
    /// The model of this process; `None` in a scheduler.
    model: Option<Arc<LoadedModel>>,
    signature: Signature,
}

impl TextFunction {
    /// Both functions for a process: a client plans and may compute, an executor computes, a
    /// scheduler does neither.
    pub fn all(
        planned: Option<&Declaration>,
        model: Option<&Arc<LoadedModel>>,
    ) -> [Arc<ScalarUDF>; 2] {
        [Kind::Embed, Kind::Classify].map(|kind| {
            Arc::new(ScalarUDF::from(Self {
                kind,
                planned: planned.cloned(),
                model: model.cloned(),
                // Equal texts have equal answers: a repeated call may be computed once.
                signature: Signature::user_defined(Volatility::Immutable),
            }))
        })
    }

    /// The declaration in a call's second argument, or of this process.
    fn declaration(&self, literal: Option<&ScalarValue>) -> Result<Declaration> {
        let name = self.name();
        let Some(literal) = literal else {
            return self.planned.clone().ok_or_else(|| {
                plan_datafusion_err!(
                    "{name}: expected a query of `dynquant-cluster run`, which names its model"
                )
            });
        };
        let text = literal.try_as_str().flatten().unwrap_or_default();
        serde_json::from_str(text)
            .map_err(|_| plan_datafusion_err!("{name}: expected one text, got 2 arguments"))
    }

    fn answer_type(&self, declaration: &Declaration) -> Result<DataType> {
        match self.kind {
            Kind::Embed => {
                let size = length(declaration.embedding_size)?;
                Ok(DataType::FixedSizeList(item(), size))
            }
            Kind::Classify if declaration.is_classifier => Ok(DataType::Utf8),
            Kind::Classify => plan_err!(
                "classify: expected a model with a classification head, got {}",
                declaration.model
            ),
        }
    }

    /// The model of a call.
    fn model(&self, expected: &Identity) -> Result<&LoadedModel> {
        let name = self.name();
        match self.model.as_deref() {
            Some(model) if model.identity.agrees(expected) => Ok(model),
            Some(model) => exec_err!(
                "{name}: expected the model of the query, {expected}, got {} on an executor; start all machines of \
                 a cluster with the same model and the same program",
                model.identity
            ),
            None => exec_err!(
                "{name}: expected a process with the model {expected}, got one without a model"
            ),
        }
    }

    fn answer(&self, texts: &ArrayRef, declaration: &Declaration) -> Result<ArrayRef> {
        let Declaration { truncate, embedding_size, .. } = *declaration;
        let model = self.model(&declaration.model)?;
        let head = match self.kind {
            Kind::Embed => Head::Embedding,
            Kind::Classify => Head::Classes,
        };
        let texts = strings(texts)?;
        let answers = model.answer(&texts, head, truncate).map_err(|error| {
            let hint = if truncate { "" } else { " (--truncate cuts texts that are too long)" };
            exec_datafusion_err!("{}: {error:#}{hint}", self.name())
        })?;
        match self.kind {
            Kind::Embed => embeddings(&answers, embedding_size),
            Kind::Classify => {
                let label = |logits: &Option<Vec<f32>>| model.label(logits.as_deref()?);
                let labels: StringArray = answers.iter().map(label).collect();
                Ok(Arc::new(labels))
            }
        }
    }
}

impl PartialEq for TextFunction {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.planned == other.planned
    }
}

impl Eq for TextFunction {}

impl Hash for TextFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.planned.hash(state);
    }
}

impl ScalarUDFImpl for TextFunction {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Embed => "embed",
            Kind::Classify => "classify",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        let (text, declaration) = match arguments {
            [text] => (text, None),
            [text, DataType::Utf8] => (text, Some(DataType::Utf8)),
            got => return plan_err!("{name}: expected one text, got {} arguments", got.len()),
        };
        let text = match text {
            DataType::Dictionary(_, values) => values,
            text => text,
        };
        let text = match text {
            DataType::Null => DataType::Utf8,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => text.clone(),
            got => {
                return plan_err!(
                    "{name}: expected a text (Utf8, LargeUtf8 or Utf8View), got {got}; CAST(.. AS VARCHAR) makes one"
                );
            }
        };
        Ok(std::iter::once(text).chain(declaration).collect())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("{}: its type depends on its model", self.name())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let declaration = match *arguments.scalar_arguments {
            [_] => self.declaration(None)?,
            [_, Some(literal)] => self.declaration(Some(literal))?,
            _ => return plan_err!("{}: expected one text", self.name()),
        };
        let data_type = self.answer_type(&declaration)?;
        Ok(Arc::new(Field::new(self.name(), data_type, true)))
    }

    fn simplify(
        &self,
        mut arguments: Vec<Expr>,
        _: &SimplifyContext,
    ) -> Result<ExprSimplifyResult> {
        let (Some(planned), [_]) = (&self.planned, arguments.as_slice()) else {
            return Ok(ExprSimplifyResult::Original(arguments));
        };
        let planned = serde_json::to_string(planned);
        let planned = planned.map_err(|error| plan_datafusion_err!("{}: {error}", self.name()))?;
        arguments.push(lit(planned));
        let function = Arc::new(ScalarUDF::from(self.clone()));
        let call = ScalarFunction::new_udf(function, arguments);
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(call)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (texts, declaration) = match arguments.args.as_slice() {
            [texts] => (texts, self.declaration(None)?),
            [texts, ColumnarValue::Scalar(literal)] => (texts, self.declaration(Some(literal))?),
            got => {
                return exec_err!(
                    "{}: expected one text, got {} arguments",
                    self.name(),
                    got.len()
                );
            }
        };
        match texts {
            ColumnarValue::Array(texts) => {
                self.answer(texts, &declaration).map(ColumnarValue::Array)
            }
            ColumnarValue::Scalar(text) => {
                let answer = self.answer(&text.to_array()?, &declaration)?;
                ScalarValue::try_from_array(&answer, 0).map(ColumnarValue::Scalar)
            }
        }
    }
}

fn strings(array: &ArrayRef) -> Result<Vec<Option<&str>>> {
    match array.data_type() {
        DataType::Utf8 => Ok(array.as_string::<i32>().iter().collect()),
        DataType::LargeUtf8 => Ok(array.as_string::<i64>().iter().collect()),
        DataType::Utf8View => Ok(array.as_string_view().iter().collect()),
        got => exec_err!("expected texts (Utf8, LargeUtf8 or Utf8View), got {got}"),
    }
}

fn embeddings(answers: &[Option<Vec<f32>>], size: usize) -> Result<ArrayRef> {
    let mut values = Vec::with_capacity(answers.len() * size);
    for answer in answers {
        match answer {
            Some(answer) => values.extend_from_slice(answer),
            // A list of fixed size has room for values where it is null too.
            None => values.resize(values.len() + size, 0.),
        }
    }
    let nulls = NullBuffer::from_iter(answers.iter().map(Option::is_some));
    let values = Arc::new(Float32Array::from(values));
    let lists = FixedSizeListArray::try_new(item(), length(size)?, values, Some(nulls))?;
    Ok(Arc::new(lists))
}

fn item() -> FieldRef {
    Arc::new(Field::new_list_field(DataType::Float32, true))
}

fn length(size: usize) -> Result<i32> {
    i32::try_from(size)
        .map_err(|_| exec_datafusion_err!("embed: expected less than 2^31 numbers, got {size}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The functions of a process without a model.
    fn functions(is_classifier: bool) -> [Arc<ScalarUDF>; 2] {
        let model =
            serde_json::from_str(r#"{"name":"a","weights":"int8","digest":"0123456789abcdef01"}"#);
        let declaration = Declaration {
            model: model.unwrap(),
            embedding_size: 2,
            is_classifier,
            truncate: false,
        };
        TextFunction::all(Some(&declaration), None)
    }

    fn text() -> FieldRef {
        Arc::new(Field::new("text", DataType::Utf8, true))
    }

    fn answer_type(function: &ScalarUDF) -> Result<DataType> {
        let field = function.return_field_from_args(ReturnFieldArgs {
            arg_fields: &[text()],
            scalar_arguments: &[None],
        });
        Ok(field?.data_type().clone())
    }

    #[test]
    fn classes_are_of_models_that_have_them() {
        let [_, classify] = functions(true);
        assert_eq!(answer_type(&classify).unwrap(), DataType::Utf8);
        let [embed, classify] = functions(false);
        let error = answer_type(&classify).unwrap_err();
        let expected = "classify: expected a model with a classification head, got a (int8, hash 0123456789abcdef)";
        assert!(error.to_string().contains(expected), "{error}");
        answer_type(&embed).unwrap();
    }

    #[test]
    fn a_process_without_a_model_computes_nothing() {
        let error = functions(false)[0].invoke_with_args(ScalarFunctionArgs {
            args: vec![ColumnarValue::Scalar(ScalarValue::from("a text"))],
            arg_fields: vec![text()],
            number_rows: 1,
            return_field: text(),
            config_options: Arc::default(),
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("got one without a model"), "{error}");
    }
}
