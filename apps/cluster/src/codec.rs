//! Plans on their way to a scheduler and its executors: Ballista's codecs, and the functions of this program.

use std::fmt::Debug;
use std::sync::Arc;

use ballista_core::serde::{BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, exec_datafusion_err};
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Extension, LogicalPlan, ScalarUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::function::{Declaration, Kind, TextFunction};
use crate::model::LoadedModel;

/// What a process makes of the functions in a plan that it receives.
#[derive(Clone, Debug, Default)]
struct Functions {
    /// The model that computes them; a scheduler only hands them on.
    model: Option<Arc<LoadedModel>>,
}

impl Functions {
    fn encode(udf: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let Some(function) = TextFunction::of(udf) else {
            // A function that all processes know by its name.
            return Ok(());
        };
        serde_json::to_writer(bytes, &function.declaration)
            .map_err(|error| exec_datafusion_err!("{}: {error}", function.kind))
    }

    fn decode(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| exec_datafusion_err!("there is no function {name}"))?;
        let declaration: Declaration = serde_json::from_slice(bytes).map_err(|error| {
            exec_datafusion_err!(
                "{name}: expected the declaration of a function of this program: {error}"
            )
        })?;
        let udf = TextFunction::udf(kind, declaration, self.model.clone());
        Ok(Arc::new(udf))
    }
}

/// Of logical plans, from clients to schedulers.
#[derive(Debug)]
pub struct LogicalCodec {
    ballista: BallistaLogicalExtensionCodec,
    functions: Functions,
}

impl LogicalCodec {
    /// The codec of a process with that model, or without one.
    pub fn new(model: Option<Arc<LoadedModel>>) -> Arc<Self> {
        Arc::new(Self {
            ballista: BallistaLogicalExtensionCodec::default(),
            functions: Functions { model },
        })
    }
}

impl LogicalExtensionCodec for LogicalCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[LogicalPlan],
        context: &TaskContext,
    ) -> Result<Extension> {
        self.ballista.try_decode(bytes, inputs, context)
    }

    fn try_encode(&self, node: &Extension, bytes: &mut Vec<u8>) -> Result<()> {
        self.ballista.try_encode(node, bytes)
    }

    fn try_decode_table_provider(
        &self,
        bytes: &[u8],
        table: &TableReference,
        schema: SchemaRef,
        context: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        self.ballista
            .try_decode_table_provider(bytes, table, schema, context)
    }

    fn try_encode_table_provider(
        &self,
        table: &TableReference,
        provider: Arc<dyn TableProvider>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.ballista
            .try_encode_table_provider(table, provider, bytes)
    }

    fn try_decode_file_format(
        &self,
        bytes: &[u8],
        context: &TaskContext,
    ) -> Result<Arc<dyn FileFormatFactory>> {
        self.ballista.try_decode_file_format(bytes, context)
    }

    fn try_encode_file_format(
        &self,
        bytes: &mut Vec<u8>,
        format: Arc<dyn FileFormatFactory>,
    ) -> Result<()> {
        self.ballista.try_encode_file_format(bytes, format)
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.functions.decode(name, bytes)
    }

    fn try_encode_udf(&self, udf: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        Functions::encode(udf, bytes)
    }
}

/// Of physical plans, from schedulers to executors.
#[derive(Debug)]
pub struct PhysicalCodec {
    ballista: BallistaPhysicalExtensionCodec,
    functions: Functions,
}

impl PhysicalCodec {
    /// The codec of a process with that model, or without one.
    pub fn new(model: Option<Arc<LoadedModel>>) -> Arc<Self> {
        Arc::new(Self {
            ballista: BallistaPhysicalExtensionCodec::default(),
            functions: Functions { model },
        })
    }
}

impl PhysicalExtensionCodec for PhysicalCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.ballista.try_decode(bytes, inputs, context, converter)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        self.ballista.try_encode(node, bytes, converter)
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.functions.decode(name, bytes)
    }

    fn try_encode_udf(&self, udf: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        Functions::encode(udf, bytes)
    }
}
