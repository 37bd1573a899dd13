//! Changes what a server may send and lapin cannot read: short texts that are not UTF-8, at which it ends the connection, and
//! deeply nested tables, at which its thread overflows its stack and the process dies. Each change keeps the length.

use super::frames::{BASIC_DELIVER, BASIC_RETURN};

/// Maximum depth of tables and lists. A deeper one becomes bytes.
const MAX_DEPTH: usize = 16;

/// The form of each property, in the order of its flag in a header frame, from the highest bit on.
const PROPERTIES: [Property; 14] = {
    use Property::{Fixed, Short, Table};
    // content_type, content_encoding, headers, delivery_mode, priority, correlation_id, reply_to, expiration, message_id,
    // timestamp, type, user_id, app_id, cluster_id
    [Short, Short, Table, Fixed(1), Fixed(1), Short, Short, Short, Short, Fixed(8), Short, Short, Short, Short]
};

#[derive(Clone, Copy)]
enum Property {
    Short,
    Table,
    Fixed(usize),
}

/// A part of a frame's payload, behind the bytes that were read.
struct Rest<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

/// Changes the payload of a header frame.
pub(super) fn mend_header(payload: &mut [u8]) {
    // Class, weight and size of the body are before the flags.
    let mut rest = Rest { bytes: payload, at: 12 };
    _ = rest.header();
}

/// Changes the payload of a method.
pub(super) fn mend_method(payload: &mut [u8]) {
    let mut rest = Rest { bytes: payload, at: 4 };
    _ = match rest.bytes.first_chunk() {
        // Consumer tag, number and a bit, exchange, routing key.
        Some(&BASIC_DELIVER) => rest.short().and_then(|()| rest.skip(9)).and_then(|()| rest.shorts(2)),
        // Code, text, exchange, routing key.
        Some(&BASIC_RETURN) => rest.skip(2).and_then(|()| rest.shorts(3)),
        _ => None,
    };
}

/// Each returns `None` at the end of the bytes, where lapin ends the connection, too.
impl Rest<'_> {
    fn header(&mut self) -> Option<()> {
        let flags = u16::from_be_bytes([self.byte()?, self.byte()?]);
        for (number, property) in PROPERTIES.iter().enumerate() {
            match property {
                _ if flags & (0x8000 >> number) == 0 => {}
                Property::Short => self.short()?,
                Property::Table => self.table()?,
                Property::Fixed(length) => self.skip(*length)?,
            }
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    fn length(&mut self) -> Option<usize> {
        let length = self.bytes.get(self.at..)?.first_chunk().copied().map(u32::from_be_bytes)?;
        self.at += 4;
        usize::try_from(length).ok()
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.at = self.at.checked_add(length).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn short(&mut self) -> Option<()> {
        let length = usize::from(self.byte()?);
        let text = self.bytes.get_mut(self.at..self.at + length)?;
        if std::str::from_utf8(text).is_err() {
            text.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
        self.skip(length)
    }

    fn shorts(&mut self, count: usize) -> Option<()> {
        (0..count).try_for_each(|_| self.short())
    }

    /// Walks through a table without recursion.
    fn table(&mut self) -> Option<()> {
        // Where each open table or list ends, and whether its values have names.
        let length = self.length()?;
        let mut open = vec![(self.at.checked_add(length)?, true)];
        while let Some((end, is_named)) = open.last().copied() {
            if self.at >= end {
                open.pop();
                continue;
            }
            if is_named {
                self.short()?;
            }
            match self.byte()? {
                b't' | b'b' | b'B' => self.skip(1)?,
                b's' | b'U' | b'u' => self.skip(2)?,
                b'I' | b'i' | b'f' => self.skip(4)?,
                b'l' | b'L' | b'd' | b'T' => self.skip(8)?,
                b'D' => self.skip(5)?,
                b'V' => {}
                b'S' | b'x' => {
                    let length = self.length()?;
                    self.skip(length)?;
                }
                nested @ (b'A' | b'F') => {
                    let tag = self.at - 1;
                    let length = self.length()?;
                    if open.len() < MAX_DEPTH {
                        open.push((self.at.checked_add(length)?, nested == b'F'));
                    } else {
                        // Bytes have the same form.
                        self.bytes[tag] = b'x';
                        self.skip(length)?;
                    }
                }
                _ => return None,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::protocol::basic::parse_properties;
    use lapin::types::{AMQPValue, FieldTable};

    use super::super::native::encode;
    use super::*;

    /// The payload of the header frame with these properties.
    fn payload(properties: &[u8]) -> Vec<u8> {
        [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], properties].concat()
    }

    fn mended(properties: &[u8]) -> BasicProperties {
        let mut bytes = payload(properties);
        mend_header(&mut bytes);
        let (rest, properties) = parse_properties(&bytes[12..]).expect("lapin can read it");
        assert!(rest.is_empty());
        properties
    }

    /// Lists in lists, as bytes.
    fn nested(depth: usize) -> Vec<u8> {
        let mut list = Vec::new();
        for _ in 0..depth {
            let length = u32::try_from(list.len()).unwrap().to_be_bytes();
            list = [&b"A"[..], &length, &list].concat();
        }
        let table = [&b"\x01a"[..], &list].concat();
        [&[0x20, 0][..], &u32::try_from(table.len()).unwrap().to_be_bytes(), &table].concat()
    }

    #[test]
    fn what_lapin_can_read_stays_as_it_is() {
        let mut inner = FieldTable::default();
        inner.insert("é".into(), AMQPValue::Timestamp(1));
        let mut table = FieldTable::default();
        for (name, value) in [
            ("list", AMQPValue::FieldArray(vec![AMQPValue::Boolean(true), AMQPValue::LongString("a".into())].into())),
            ("table", AMQPValue::FieldTable(inner)),
            ("none", AMQPValue::Void),
            ("short", AMQPValue::ShortInt(-1)),
            ("double", AMQPValue::Double(1.5)),
            ("long", AMQPValue::LongUInt(1)),
        ] {
            table.insert(name.into(), value);
        }
        let properties = BasicProperties::default()
            .with_content_type("a/b".into())
            .with_headers(table)
            .with_priority(1)
            .with_message_id("ü".into())
            .with_timestamp(7)
            .with_app_id("x".into());
        let mut bytes = payload(&encode(&properties));
        let before = bytes.clone();
        mend_header(&mut bytes);
        assert_eq!(bytes, before);
        assert_eq!(mended(&encode(&properties)), properties);
    }

    #[test]
    fn a_text_that_is_not_utf_8_has_question_marks() {
        // Flags: message_id and type.
        let properties = mended(b"\x00\xa0\x03a\xffb\x02\xc3\xa9");
        assert_eq!(properties.message_id().as_ref().map(|text| text.as_str()), Some("a?b"));
        assert_eq!(properties.kind().as_ref().map(|text| text.as_str()), Some("é"));
        let named = mended(b"\x20\x00\x00\x00\x00\x03\x01\xfeV");
        assert!(named.headers().as_ref().is_some_and(|table| table.contains_key("?")));
        let mut deliver = [&BASIC_DELIVER[..], b"\x01c", &[0; 9], b"\x02e\xff", b"\x01\xff"].concat();
        mend_method(&mut deliver);
        assert!(deliver.ends_with(b"\x02e?\x01?"));
        let mut returned = [&BASIC_RETURN[..], &[1, 56], b"\x01\xff", b"\x00", b"\x01k"].concat();
        mend_method(&mut returned);
        assert!(returned.ends_with(b"\x01?\x00\x01k"));
    }

    #[test]
    fn a_table_of_any_depth_can_be_read() {
        for depth in [1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 20_000] {
            let properties = mended(&nested(depth));
            let mut value = properties.headers().as_ref().unwrap().inner()["a"].clone();
            let mut found = 0;
            while let AMQPValue::FieldArray(list) = value {
                found += 1;
                let Some(inner) = list.as_slice().first() else { break };
                value = inner.clone();
            }
            assert_eq!(found, depth.min(MAX_DEPTH - 1), "{depth}");
        }
    }

    #[test]
    fn bytes_that_are_cut_off_or_damaged_harm_nothing() {
        let bytes = payload(&nested(40));
        for length in 0..bytes.len() {
            mend_header(&mut bytes[..length].to_vec());
            let mut damaged = bytes.clone();
            damaged[length] = 0xff;
            mend_header(&mut damaged);
            mend_method(&mut bytes[..length].to_vec());
        }
    }
}
