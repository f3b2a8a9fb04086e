//! Cells and locks are walked; what is shared has to be `Clone`, which a lock is not.
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, RwLock};

use candle::Tensor;
use candle_nn::Linear;

pub struct Inner {
    layer: Linear,
}

pub struct Counted {
    layer: Linear,
}

pub struct Listed {
    layer: Linear,
}

pub struct Walked {
    a: RwLock<Inner>,
    b: Mutex<Linear>,
    c: RefCell<Option<Linear>>,
    d: OnceCell<Linear>,
    e: OnceLock<Linear>,
    f: Rc<RefCell<Counted>>,
    g: Vec<Arc<Listed>>,
    h: (Rc<Linear>, usize),
    cache: Arc<Mutex<HashMap<usize, Tensor>>>,
}

pub struct Guarded {
    layer: Linear,
    count: Option<Mutex<usize>>,
}

pub struct Hidden {
    a: Arc<RwLock<Linear>>,
    b: Option<Arc<Mutex<Inner>>>,
    c: Rc<Vec<Mutex<Linear>>>,
    d: Weak<Linear>,
    e: Vec<Cell<Linear>>,
    f: LazyLock<Linear>,
    g: Box<Arc<Option<RwLock<Linear>>>>,
    h: Arc<(Linear, Mutex<usize>)>,
    i: Arc<Guarded>,
}
