//! A map of JSON whose keys come once: from a key that comes twice, other readers would take
//! another value.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::words::brief;

/// A value whose type may depend on its key.
pub trait Keyed: Sized {
    /// The map, for errors.
    const MAP: &'static str;

    fn read<'de, A: MapAccess<'de>>(key: &str, from: &mut A) -> Result<Self, A::Error>;
}

/// The values in their order.
pub struct UniqueMap<V>(pub Vec<(String, V)>);

impl<'de, V: Keyed> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Keyed> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(V::MAP)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<UniqueMap<V>, A::Error> {
                let (mut map, mut seen) = (Vec::new(), HashSet::new());
                while let Some(key) = from.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        let key = brief(&key, 200);
                        return Err(A::Error::custom(format_args!("{key:?} twice")));
                    }
                    let value = V::read(&key, &mut from)?;
                    map.push((key, value));
                }
                Ok(UniqueMap(map))
            }
        }

        from.deserialize_map(Entries(PhantomData))
    }
}
