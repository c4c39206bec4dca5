//! Lists that mostly have one element, which then takes no allocation.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{SeqAccess, Visitor},
};
use smallvec::SmallVec;

/// A list of seldom more than one element. It is serialised as a `Vec` is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Few<T>(SmallVec<[T; 1]>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Few(SmallVec::new())
    }
}

impl<T> Few<T> {
    /// Adds an element at the end.
    pub fn push(&mut self, element: T) {
        self.0.push(element);
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(elements: Vec<T>) -> Self {
        // One element takes no room of its own, even where it has some.
        elements.into_iter().collect()
    }
}

impl<T, const N: usize> From<[T; N]> for Few<T> {
    fn from(elements: [T; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Clone> From<&[T]> for Few<T> {
    fn from(elements: &[T]) -> Self {
        elements.iter().cloned().collect()
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Few(elements.into_iter().collect())
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        self.0.extend(elements);
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = smallvec::IntoIter<[T; 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Serialize> Serialize for Few<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0[..].serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = Few<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Few<T>, A::Error> {
                // What the input says of its length is not believed.
                let mut few = Few::default();
                while let Some(element) = sequence.next_element()? {
                    few.push(element);
                }
                Ok(few)
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_serialised_as_a_vec_is() {
        for elements in [vec![], vec![u64::MAX], vec![1, 2, 300]] {
            let few = Few::from(elements.clone());
            let bytes = postcard::to_stdvec(&few).expect("bytes");
            assert_eq!(bytes, postcard::to_stdvec(&elements).expect("bytes"));
            assert_eq!(postcard::from_bytes::<Few<u64>>(&bytes).expect("a list"), few);
            assert_eq!(few.into_iter().collect::<Vec<_>>(), elements);
        }
    }
}
