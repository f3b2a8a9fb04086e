//! Names of candle and of its `with_tracing`, and their replacements in candle-dynquant.
//!
//! No other file knows these names: a name that the library gains is added here.

/// A list of words without quotes and commas.
macro_rules! list {
    ($($word:ident)*) => { &[$(stringify!($word)),*] };
}
pub(crate) use list;

/// A module of candle-dynquant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    Nn,
    Ops,
}

impl Home {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nn => "nn",
            Self::Ops => "ops",
        }
    }
}

/// A name's namesake in candle-dynquant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub home: Home,
    pub name: &'static str,
    /// The number of segments of the path that it replaces.
    pub segments: usize,
}

/// Types of `nn` that a walk looks for: those whose weights can be quantized, and norms, whose range
/// can be moved to weights.
pub const LAYERS: &[&str] = list![
    Conv1d Conv2d ConvTranspose1d Embedding Func FuncT GRU LSTM LayerNorm Linear RmsNorm Router
    Sequential
];

/// Types and functions that `candle_dynquant::nn` defines under `candle_nn`'s names.
const NN: &[&str] = list![
    Activation Conv1d Conv1dConfig Conv2d Conv2dConfig ConvTranspose1d ConvTranspose1dConfig
    ConvTranspose2d ConvTranspose2dConfig Embedding Func FuncT GRU GRUConfig GRUState LSTM LSTMConfig
    LSTMState LayerNorm Linear RmsNorm Sequential conv1d conv1d_no_bias conv2d conv2d_no_bias
    conv_transpose1d conv_transpose1d_no_bias conv_transpose2d conv_transpose2d_no_bias embedding
    func func_t gru layer_norm layer_norm_no_bias linear linear_b linear_no_bias lstm rms_norm seq
];

/// Functions of `nn` that load a layer.
pub const MAKERS: &[&str] = list![
    conv1d conv1d_no_bias conv2d conv2d_no_bias conv_transpose1d conv_transpose1d_no_bias embedding
    gru layer_norm layer_norm_no_bias linear linear_b linear_no_bias lstm rms_norm router
];

/// Convolutions that a batch norm can be folded into, and the functions of `nn` that load them.
pub const CONVOLUTIONS: &[&str] = list![
    Conv1d Conv2d ConvTranspose1d conv1d conv1d_no_bias conv2d conv2d_no_bias conv_transpose1d
    conv_transpose1d_no_bias
];

/// Items that `candle_dynquant::nn` re-exports from `candle_nn`.
const SAME: &[&str] = list![
    AdamW BatchNorm BatchNormConfig Dropout GroupNorm Init LayerNormConfig Module ModuleT
    Optimizer PReLU ParamsAdamW SGD VarBuilder VarMap attention batch_norm cpu_flash_attention
    encoding group_norm init kv_cache loss moe optim prelu rotary_emb sampling
    var_builder var_map varlen_attention
];

/// Items that `candle_dynquant::ops` re-exports from `candle_nn::ops`.
const SAME_OPS: &[&str] = list![
    Dropout Identity dropout hard_sigmoid layer_norm_slow leaky_relu log_softmax mish pixel_shuffle
    pixel_unshuffle replication_pad2d rms_norm_slow sdpa selu
];

/// Modules of `candle_nn` that hold some of [`NN`].
const NN_MODULES: &[&str] = list![activation conv embedding func layer_norm linear rnn sequential];

/// Functions that `candle_nn::ops` and `candle_dynquant::ops` have under the same name.
const OPS: &[&str] = list![layer_norm rms_norm sigmoid silu softmax softmax_last_dim swiglu];

/// Functions that `candle_nn::rotary_emb` and `candle_dynquant::ops` have under the same name.
const ROTARY: &[&str] = &["rope", "rope_thd"];

/// Names of candle-transformers' `with_tracing` that are replaced; the rest stays.
const TRACED: &[&str] = list![
    Conv2d Embedding LayerNorm Linear RmsNorm conv2d layer_norm linear linear_b linear_no_bias
];

/// Constructors of `with_tracing` that load: type, number of arguments, function of `nn`.
const LOADERS: &[(&str, usize, &str)] =
    &[("Embedding", 3, "embedding"), ("RmsNorm", 3, "rms_norm")];

/// Constructors of `candle_nn` that take its configuration, like the functions of `nn` of that
/// name.
const CONSTRUCTORS: &[(&str, usize, &str)] = &[("GRU", 4, "gru"), ("LSTM", 4, "lstm")];

/// Methods of `Tensor`, their numbers of arguments, and functions of `ops`. A method that numbers
/// have too counts only if its result is a `Result`.
const METHODS: &[(&str, usize, &str, Shared)] = &[
    ("elu", 1, "elu", Shared::No),
    ("gather", 2, "gather", Shared::No),
    ("gelu", 0, "gelu_tanh", Shared::No),
    ("gelu_erf", 0, "gelu_erf", Shared::No),
    ("max_pool2d", 1, "max_pool2d", Shared::No),
    ("max_pool2d_with_stride", 2, "max_pool2d_with_stride", Shared::No),
    ("silu", 0, "silu", Shared::No),
    ("tanh", 0, "tanh", Shared::WithNumbers),
    ("upsample_nearest2d", 2, "upsample_nearest2d", Shared::No),
];

/// Whether other types than `Tensor` have a method of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    No,
    WithNumbers,
}

/// Containers that hide their contents from the library.
pub const HIDING: &[&str] = &["Cell", "LazyLock", "Weak"];

/// Containers that are walked if their contents are `Clone`, also through all pointers to them.
pub const SHARING: &[&str] = &["Arc", "Rc"];

/// Containers that are never `Clone`.
pub const LOCKS: &[&str] = &["LazyLock", "Mutex", "RwLock"];

/// Traits whose objects hold no layers.
pub const PLAIN_TRAITS: &[&str] = list![
    Any Backend BufRead Debug Display Error Fn FnMut FnOnce Future Iterator Read RngCore Seek Send
    SimpleBackend Sync Unpin Write
];

/// Attributes that do not change the fields of a type.
pub const PLAIN_ATTRIBUTES: &[&str] = list![
    allow arg automatically_derived builder cfg cfg_attr command deny deprecated derive doc error
    expect forbid must_use non_exhaustive quantizable repr serde strum value warn
];

/// Crates whose types hold layers only in their arguments.
pub const PLAIN_CRATES: &[&str] = &["alloc", "candle", "candle_core", "core", "std"];

/// Types and containers of other crates that hold layers only in their arguments.
pub const PLAIN_TYPES: &[&str] = list![
    Arc AtomicBool AtomicU64 AtomicUsize BTreeMap BTreeSet Box Cell Cow DType Device Duration
    HashMap HashSet Instant LazyLock Mutex NonZeroUsize OnceCell OnceLock Option Path PathBuf
    PhantomData QMatMul QTensor Range RangeInclusive Rc RefCell RwLock Shape Span String Tensor Var
    VarBuilder Vec VecDeque Weak bool char f32 f64 i128 i16 i32 i64 i8 isize str u128 u16 u32 u64 u8
    usize
];

/// Types and containers of other crates that are `Clone` if their arguments are.
pub const CLONES: &[&str] = list![
    BTreeMap BTreeSet Box Cow DType Device Duration HashMap HashSet Instant NonZeroUsize OnceCell
    Option PathBuf QMatMul Range RangeInclusive RefCell Shape Span String Tensor Var Vec VecDeque
    bool char f32 f64 i128 i16 i32 i64 i8 isize u128 u16 u32 u64 u8 usize
];

/// Types of `candle_nn`, of `with_tracing` and of `nn` that are `Clone`.
pub const NN_CLONES: &[&str] = list![
    Activation BatchNorm Conv1d Conv1dConfig Conv2d Conv2dConfig ConvTranspose1d
    ConvTranspose1dConfig ConvTranspose2d ConvTranspose2dConfig Dropout Embedding Func FuncT GRU
    GRUConfig GRUState GroupNorm Identity KvCache LSTM LSTMConfig LSTMState LayerNorm Linear PReLU
    QMatMul RmsNorm RotatingKvCache Router VarBuilder
];

/// The namesake of a path inside `candle_nn`.
pub fn of_candle_nn(path: &[String]) -> Option<Mapped> {
    let has = |names: &[&str], name: &String| names.contains(&name.as_str());
    match path {
        [module, name, ..] if module == "ops" => mapped(OPS, name, Home::Ops, 2),
        [module, name, ..] if module == "rotary_emb" => mapped(ROTARY, name, Home::Ops, 2),
        [module, name, ..] if has(NN_MODULES, module) => mapped(NN, name, Home::Nn, 2),
        [name, ..] => mapped(NN, name, Home::Nn, 1),
        [] => None,
    }
}

/// The namesake of a path inside `with_tracing`.
pub fn of_with_tracing(path: &[String]) -> Option<Mapped> {
    mapped(TRACED, path.first()?, Home::Nn, 1)
}

fn mapped(
    names: &'static [&'static str],
    name: &str,
    home: Home,
    segments: usize,
) -> Option<Mapped> {
    let name = names.iter().copied().find(|known| *known == name)?;
    Some(Mapped { home, name, segments })
}

/// The function of `nn` that replaces `with_tracing`'s constructor.
pub fn loader(path: &[String], arguments: usize) -> Option<&'static str> {
    function(LOADERS, path, arguments)
}

/// The function of `nn` that replaces `candle_nn`'s constructor.
pub fn constructor(path: &[String], arguments: usize) -> Option<&'static str> {
    match path {
        [module, path @ ..] if NN_MODULES.contains(&module.as_str()) => {
            function(CONSTRUCTORS, path, arguments)
        }
        path => function(CONSTRUCTORS, path, arguments),
    }
}

fn function(
    table: &'static [(&'static str, usize, &'static str)],
    path: &[String],
    arguments: usize,
) -> Option<&'static str> {
    let [name, new] = path else { return None };
    let found = table.iter().find(|(known, count, _)| known == name && *count == arguments);
    found.filter(|_| new == "new").map(|(_, _, function)| *function)
}

/// Whether `with_tracing`'s type loads in its constructor.
pub fn loads(name: &str) -> bool {
    LOADERS.iter().any(|(known, ..)| *known == name)
}

/// The function of `ops` that replaces a method of a tensor.
pub fn of_method(name: &str, arguments: usize) -> Option<(&'static str, Shared)> {
    let is_it = |(method, count, ..): &&(&str, usize, _, _)| (*method, *count) == (name, arguments);
    METHODS.iter().find(is_it).map(|(.., function, shared)| (*function, *shared))
}

/// Whether a type is a codebook by its name: a product with codes is a distance.
pub fn is_codebook(name: &str) -> bool {
    let name = name.to_lowercase();
    ["codebook", "quantizer", "vectorquant"].iter().any(|word| name.contains(word))
}

/// Whether this name of `candle_nn` is a closure, which may hold layers.
pub fn is_closure(name: &str) -> bool {
    matches!(name, "Func" | "FuncT")
}

/// Whether a path inside `candle_nn` leads to the same item through `candle_dynquant::nn`.
pub fn is_in_nn(path: &[String]) -> bool {
    let has = |names: &[&str], name: &String| names.contains(&name.as_str());
    match path {
        [] => true,
        [ops] if ops == "ops" => true,
        [ops, name, ..] if ops == "ops" => has(OPS, name) || has(SAME_OPS, name),
        // A module of candle, beside a function of that name in `nn`, holds candle's layers.
        [name, _, ..] if has(NN_MODULES, name) => false,
        [name, ..] => has(NN, name) || has(SAME, name),
    }
}
