//! `embed` and `classify` as functions of SQL.
//!
//! A call states which model it is of, where it is planned. An executor with another model answers it with an
//! error, so that a result never mixes two.
//!
//! A batch is computed on the thread that asks for it, which for that time does nothing else. There is one
//! such thread for each partition, no more partitions at a time than cores, and nothing beside them that has
//! to be on time: executors send their signs of life from other threads. Threads for the model alone would
//! only move the work. The library's own threads help the partition that finds them free.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, StringArray,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use dynquant_encoder::Head;
use serde::{Deserialize, Serialize};

use crate::identity::Identity;
use crate::model::LoadedModel;

/// All that a plan says of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Declaration {
    /// The model that the query is of.
    pub model: Identity,
    /// Length of an embedding.
    pub hidden_size: usize,
    /// Whether the model has a classification head.
    pub is_classifier: bool,
    /// Whether texts that are too long are cut.
    pub truncate: bool,
}

impl Declaration {
    /// That of a model, and of how the command line wants it to be used.
    pub fn of(model: &LoadedModel, truncate: bool) -> Self {
        Self {
            model: model.identity.clone(),
            hidden_size: model.hidden_size(),
            is_classifier: model.is_classifier(),
            truncate,
        }
    }
}

/// The answer that a function gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An embedding.
    Embed,
    /// The name of a class.
    Classify,
}

impl Kind {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Embed, Self::Classify];

    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Classify => "classify",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A function from texts to answers.
#[derive(Clone, Debug)]
pub struct TextFunction {
    pub kind: Kind,
    pub declaration: Declaration,
    /// The model of this process; a scheduler has none.
    model: Option<Arc<LoadedModel>>,
    signature: Signature,
}

impl TextFunction {
    /// A function as a plan declares it, computed by the model of this process.
    pub fn udf(kind: Kind, declaration: Declaration, model: Option<Arc<LoadedModel>>) -> ScalarUDF {
        ScalarUDF::from(Self {
            kind,
            declaration,
            model,
            // The same text has the same answer: it may be computed once where a query asks twice.
            signature: Signature::user_defined(Volatility::Immutable),
        })
    }

    /// What a function is, if it is one of these.
    pub fn of(udf: &ScalarUDF) -> Option<&Self> {
        let inner: &dyn Any = udf.inner().as_ref();
        inner.downcast_ref()
    }

    /// The model that the plan asks for.
    fn model(&self) -> Result<&LoadedModel> {
        let Self {
            kind, declaration, ..
        } = self;
        let expected = &declaration.model;
        match self.model.as_deref() {
            Some(model) if model.identity.agrees(expected) => Ok(model),
            Some(model) => exec_err!(
                "{kind}: expected the model of the query, {expected}, got {} on an executor; start all machines of \
                 a cluster with the same model and the same program",
                model.identity
            ),
            None => exec_err!(
                "{kind}: expected a process with the model {expected}, got one without a model"
            ),
        }
    }

    fn answer(&self, texts: &ArrayRef) -> Result<ArrayRef> {
        let model = self.model()?;
        let head = match self.kind {
            Kind::Embed => Head::Embedding,
            Kind::Classify => Head::Classes,
        };
        let texts = strings(texts)?;
        let answers = model.answer(&texts, head, self.declaration.truncate);
        let answers = answers.map_err(|error| {
            let hint = match self.declaration.truncate {
                true => "",
                false => " (--truncate cuts texts that are too long)",
            };
            exec_datafusion_err!("{}: {error:#}{hint}", self.kind)
        })?;
        match self.kind {
            Kind::Embed => embeddings(&answers, self.declaration.hidden_size),
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
        self.kind == other.kind && self.declaration == other.declaration
    }
}

impl Eq for TextFunction {}

impl Hash for TextFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.declaration.hash(state);
    }
}

impl ScalarUDFImpl for TextFunction {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let kind = self.kind;
        let [text] = arguments else {
            return plan_err!(
                "{kind}: expected one text, got {} arguments",
                arguments.len()
            );
        };
        let text = match text {
            DataType::Dictionary(_, values) => values,
            text => text,
        };
        match text {
            DataType::Null => Ok(vec![DataType::Utf8]),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(vec![text.clone()]),
            got => plan_err!(
                "{kind}: expected a text (Utf8, LargeUtf8 or Utf8View), got {got}; CAST(.. AS VARCHAR) makes one"
            ),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        match self.kind {
            Kind::Embed => Ok(DataType::FixedSizeList(
                item(),
                length(self.declaration.hidden_size)?,
            )),
            Kind::Classify if self.declaration.is_classifier => Ok(DataType::Utf8),
            Kind::Classify => plan_err!(
                "classify: expected a model with a classification head, got {}",
                self.declaration.model
            ),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match arguments.args.as_slice() {
            [ColumnarValue::Array(texts)] => Ok(ColumnarValue::Array(self.answer(texts)?)),
            [ColumnarValue::Scalar(text)] => {
                let answer = self.answer(&text.to_array()?)?;
                ScalarValue::try_from_array(&answer, 0).map(ColumnarValue::Scalar)
            }
            got => exec_err!(
                "{}: expected one text, got {} arguments",
                self.kind,
                got.len()
            ),
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
            // A list of a fixed size has room for its values where it is null, too.
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

    fn function(kind: Kind, is_classifier: bool) -> ScalarUDF {
        let model =
            serde_json::from_str(r#"{"name":"a","weights":"int8","digest":"0123456789abcdef01"}"#);
        let declaration = Declaration {
            model: model.unwrap(),
            hidden_size: 2,
            is_classifier,
            truncate: false,
        };
        TextFunction::udf(kind, declaration, None)
    }

    #[test]
    fn classes_are_of_models_that_have_them() {
        let text = [DataType::Utf8];
        assert_eq!(
            function(Kind::Classify, true).return_type(&text).unwrap(),
            DataType::Utf8
        );
        let error = function(Kind::Classify, false)
            .return_type(&text)
            .unwrap_err();
        let expected = "classify: expected a model with a classification head, got a (int8, sha256 0123456789abcdef)";
        assert!(error.to_string().contains(expected), "{error}");
        function(Kind::Embed, false).return_type(&text).unwrap();
    }

    #[test]
    fn a_process_without_a_model_computes_nothing() {
        let text = ColumnarValue::Scalar(ScalarValue::from("a text"));
        let field = Arc::new(Field::new("text", DataType::Utf8, true));
        let error = function(Kind::Embed, false).invoke_with_args(ScalarFunctionArgs {
            args: vec![text],
            arg_fields: vec![Arc::clone(&field)],
            number_rows: 1,
            return_field: field,
            config_options: Arc::default(),
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("got one without a model"), "{error}");
    }
}
