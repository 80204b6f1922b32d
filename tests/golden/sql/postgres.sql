CREATE SCHEMA golden;
CREATE TABLE golden.trident_applied (
    topology text NOT NULL,
    state text NOT NULL,
    table_name text NOT NULL,
    definition text NOT NULL,
    incarnation text,
    high bigint,
    fence bigint,
    holes text,
    "position" text,
    attempt integer
);
CREATE TABLE golden.trident_before_words_counted (
    word text COLLATE pg_catalog."C",
    n bigint,
    most double precision,
    trident_removed boolean DEFAULT false NOT NULL
);
CREATE TABLE golden.trident_before_words_kept (
    word text COLLATE pg_catalog."C",
    k double precision,
    i integer,
    x double precision,
    d numeric(20,3),
    t timestamp with time zone,
    day date,
    at time without time zone,
    took interval,
    bits bytea,
    ok boolean,
    tags jsonb,
    m jsonb,
    s jsonb,
    trident_removed boolean DEFAULT false NOT NULL
);
CREATE TABLE golden.words_counted (
    word text COLLATE pg_catalog."C",
    n bigint,
    most double precision
);
CREATE TABLE golden.words_kept (
    word text COLLATE pg_catalog."C",
    k double precision,
    i integer,
    x double precision,
    d numeric(20,3),
    t timestamp with time zone,
    day date,
    at time without time zone,
    took interval,
    bits bytea,
    ok boolean,
    tags jsonb,
    m jsonb,
    s jsonb
);
CREATE TABLE golden.words_longest (
    word text COLLATE pg_catalog."C",
    line text COLLATE pg_catalog."C"
);
CREATE TABLE golden.words_total (
    x double precision,
    d numeric(38,3)
);
INSERT INTO golden.trident_applied VALUES ('words', 'counted', 'words_counted', '(word string) -> (n long, most double)', 'i1', 2, 20, '[]', '{"lines": {"to": 2}}', 0);
INSERT INTO golden.trident_applied VALUES ('words', 'kept', 'words_kept', '(word string, k double) -> (i int, x double, d decimal(20,3), t timestamp, day date, at time, took interval day to second, bits binary, ok boolean, tags array<string>, m map<string,long>, s struct<a:long,b:string>)', 'i1', 2, 20, '[]', '{"lines": {"to": 2}}', 0);
INSERT INTO golden.trident_applied VALUES ('words', 'total', 'words_total', '() -> (x double, d decimal(38,3))', 'i1', 2, 20, '[]', '{"lines": {"to": 2}}', -1);
INSERT INTO golden.trident_applied VALUES ('words', 'longest', 'words_longest', '(word string) -> (line string)', 'i1', 2, 20, '[]', '{"lines": {"to": 2}}', -1);
INSERT INTO golden.trident_before_words_counted VALUES ('a', 1, 0.5, false);
INSERT INTO golden.trident_before_words_counted VALUES (NULL, NULL, NULL, true);
INSERT INTO golden.trident_before_words_kept VALUES ('a', 0.5, 7, 0.1, 1.250, '2024-02-29 12:30:00.125+00', '2024-02-29', '12:30:00.125', '01:00:00.000005', '\x00ff', true, '["x", null]', '{"k": 1}', NULL, false);
INSERT INTO golden.trident_before_words_kept VALUES ('it''s \ 	', -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true);
INSERT INTO golden.words_counted VALUES ('b', 2, 1.5);
INSERT INTO golden.words_counted VALUES ('a', 4, 9);
INSERT INTO golden.words_counted VALUES (NULL, 1, NULL);
INSERT INTO golden.words_kept VALUES (NULL, NULL, NULL, 'NaN', NULL, NULL, NULL, NULL, NULL, '\x', false, '[]', '{}', '{"a": 1, "b": "y"}');
INSERT INTO golden.words_kept VALUES ('a', 0.5, NULL, 'NaN', NULL, NULL, NULL, NULL, NULL, '\x', false, '[]', '{}', '{"a": 1, "b": "y"}');
INSERT INTO golden.words_kept VALUES ('it''s \ 	', -1, 7, 0.1, 1.250, '2024-02-29 12:30:00.125+00', '2024-02-29', '12:30:00.125', '01:00:00.000005', '\x00ff', true, '["x", null]', '{"k": 1}', NULL);
INSERT INTO golden.words_longest VALUES ('b', 'y');
INSERT INTO golden.words_longest VALUES ('c', 'zz');
INSERT INTO golden.words_total VALUES (1.5, 2.125);
ALTER TABLE ONLY golden.trident_applied
    ADD CONSTRAINT trident_applied_pkey PRIMARY KEY (topology, state);
ALTER TABLE ONLY golden.trident_applied
    ADD CONSTRAINT trident_applied_table_name_key UNIQUE (table_name);
CREATE UNIQUE INDEX trident_key_words_counted ON golden.words_counted USING btree (word) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX trident_key_words_kept ON golden.words_kept USING btree (word, k) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX trident_key_words_longest ON golden.words_longest USING btree (word) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX trident_key_words_total ON golden.words_total USING btree ((true));
CREATE UNIQUE INDEX trident_old_key_words_counted ON golden.trident_before_words_counted USING btree (word) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX trident_old_key_words_kept ON golden.trident_before_words_kept USING btree (word, k) NULLS NOT DISTINCT;
