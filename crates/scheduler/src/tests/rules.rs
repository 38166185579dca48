//! The rules, one by one, on clusters that fit on a page.
