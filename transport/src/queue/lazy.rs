//! A queue that most queue pairs never use: a pointer until the first element.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::ops::Deref;

#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "three words less for each queue pair"
)]
pub(crate) struct LazyDeque<T> {
    elements: Option<Box<VecDeque<T>>>,
}

impl<T> LazyDeque<T> {
    pub(crate) const fn new() -> Self {
        Self { elements: None }
    }

    #[inline]
    pub(crate) fn push_back(&mut self, element: T) {
        self.elements.get_or_insert_default().push_back(element);
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.elements.as_mut()?.pop_front()
    }

    pub(crate) fn pop_back(&mut self) -> Option<T> {
        self.elements.as_mut()?.pop_back()
    }

    /// Removes all elements, and keeps their memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if let Some(elements) = &mut self.elements {
            elements.clear();
        }
    }
}

impl<T> Extend<T> for LazyDeque<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        for element in elements {
            self.push_back(element);
        }
    }
}

impl<T> Deref for LazyDeque<T> {
    type Target = VecDeque<T>;

    #[inline]
    fn deref(&self) -> &VecDeque<T> {
        self.elements
            .as_deref()
            .unwrap_or(const { &VecDeque::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_in_order() {
        let mut queue = LazyDeque::new();
        assert!(queue.is_empty());
        assert_eq!((queue.pop_front(), queue.pop_back()), (None, None));
        queue.clear();
        assert!(queue.elements.is_none());
        queue.extend([1, 2, 3]);
        assert_eq!((queue.len(), queue.front()), (3, Some(&1)));
        assert_eq!((queue.pop_front(), queue.pop_back()), (Some(1), Some(3)));
        queue.clear();
        assert!(queue.is_empty());
    }
}
