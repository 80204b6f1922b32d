BEGIN TRANSACTION;
CREATE TABLE trident_before_words_counted (
	_key VARCHAR(64) NOT NULL, 
	word TEXT, 
	n BIGINT, 
	most DOUBLE, 
	trident_special TEXT, 
	trident_removed BOOLEAN NOT NULL, 
	PRIMARY KEY (_key)
);
INSERT INTO "trident_before_words_counted" VALUES('0eb5b8d6f81bc677da8a08567cc4fa9a06a57e9ec8da85ed73a7f62727996002','a',1,0.5,NULL,0);
INSERT INTO "trident_before_words_counted" VALUES('1d8fc6ceb1f94c6326d6d5483d258fcb2e179e9869325b245d105c2219bf69fd',NULL,NULL,NULL,NULL,1);
CREATE TABLE trident_before_words_kept (
	_key VARCHAR(64) NOT NULL, 
	word TEXT, 
	k DOUBLE, 
	i INTEGER, 
	x DOUBLE, 
	d TEXT, 
	t DATETIME, 
	day DATE, 
	at TIME, 
	took BIGINT, 
	bits BLOB, 
	ok BOOLEAN, 
	tags TEXT, 
	m TEXT, 
	s TEXT, 
	trident_special TEXT, 
	trident_removed BOOLEAN NOT NULL, 
	PRIMARY KEY (_key)
);
INSERT INTO "trident_before_words_kept" VALUES('4f4c8c5b70c459af7f8b4874202fb3f04539ecb499b83f88af1d07167709a83a','it''s \ 	',-1.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1);
INSERT INTO "trident_before_words_kept" VALUES('813c1f2e81b904384c2865adb55c2478094f621ef8c503ea45b46677c2442db0','a',0.5,7,0.1,'1.250','2024-02-29 12:30:00.125000','2024-02-29','12:30:00.125000',3600000005,X'00FF',1,'["x",null]','{"k":1}',NULL,NULL,0);
CREATE TABLE trident_jdbc_applied (
	id VARCHAR(64) NOT NULL, 
	table_id VARCHAR(64) NOT NULL, 
	topology TEXT NOT NULL, 
	state TEXT NOT NULL, 
	table_name TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	incarnation TEXT, 
	high BIGINT, 
	fence BIGINT, 
	holes TEXT, 
	position TEXT, 
	attempt INTEGER, 
	PRIMARY KEY (id), 
	UNIQUE (table_id)
);
INSERT INTO "trident_jdbc_applied" VALUES('77f7e6c8966f80568fc066fb0ba0bfcc18f7b8a26fcc88695e59a5ca13432bb9','78f55dfb10e57f555c5fb05d1bb4d0b7c096858a4ab64aab7cd6d8ce8ce2b7ca','words','counted','words_counted','(word string) -> (n long, most double)','i1',2,20,'[]','{"lines": {"to": 2}}',0);
INSERT INTO "trident_jdbc_applied" VALUES('51e7032cb3141b1713578c6627a52b66e008cc59355028e189b29b5a2e3b9572','7ccdab25abc4120e65d63c8c3f4b35af0931cab19c445a1eea60b661e39ac90c','words','kept','words_kept','(word string, k double) -> (i int, x double, d decimal(20,3), t timestamp, day date, at time, took interval day to second, bits binary, ok boolean, tags array<string>, m map<string,long>, s struct<a:long,b:string>)','i1',2,20,'[]','{"lines": {"to": 2}}',0);
INSERT INTO "trident_jdbc_applied" VALUES('f9d12407e1f555cca1eef8e554d5358e88c7912a8c26cd7af33dbfc92d302d41','5e92929737383166f01f6cd1e4706f14305601841c0248484c237e99dd2e1c5b','words','total','words_total','() -> (x double, d decimal(38,3))','i1',2,20,'[]','{"lines": {"to": 2}}',-1);
INSERT INTO "trident_jdbc_applied" VALUES('b2056796bd8ac7ea0e520d0ee0f45277bd140c200c6ddddfb5fef0339785563e','6d35ff1e30b2a1122b81896aae74cf00c5fbcee21f5d1c855d0901e50bb9a1e8','words','longest','words_longest','(word string) -> (line string)','i1',2,20,'[]','{"lines": {"to": 2}}',-1);
CREATE TABLE words_counted (
	_key VARCHAR(64) NOT NULL, 
	word TEXT, 
	n BIGINT, 
	most DOUBLE, 
	trident_special TEXT, 
	PRIMARY KEY (_key)
);
INSERT INTO "words_counted" VALUES('0eb5b8d6f81bc677da8a08567cc4fa9a06a57e9ec8da85ed73a7f62727996002','a',4,9.0,NULL);
INSERT INTO "words_counted" VALUES('a8950f05d3443e7921e7ec6fbe06c8febe40966a5db58b15f767a995d561290b','b',2,1.5,NULL);
INSERT INTO "words_counted" VALUES('1d8fc6ceb1f94c6326d6d5483d258fcb2e179e9869325b245d105c2219bf69fd',NULL,1,NULL,NULL);
CREATE TABLE words_kept (
	_key VARCHAR(64) NOT NULL, 
	word TEXT, 
	k DOUBLE, 
	i INTEGER, 
	x DOUBLE, 
	d TEXT, 
	t DATETIME, 
	day DATE, 
	at TIME, 
	took BIGINT, 
	bits BLOB, 
	ok BOOLEAN, 
	tags TEXT, 
	m TEXT, 
	s TEXT, 
	trident_special TEXT, 
	PRIMARY KEY (_key)
);
INSERT INTO "words_kept" VALUES('813c1f2e81b904384c2865adb55c2478094f621ef8c503ea45b46677c2442db0','a',0.5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,X'',0,'[]','{}','{"a":1,"b":"y"}','{"x": "nan"}');
INSERT INTO "words_kept" VALUES('95cb9b4f84ceff132cc7a875d8c192bf4997016a939ee64141c1fd628c0e8738',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,X'',0,'[]','{}','{"a":1,"b":"y"}','{"x": "nan"}');
INSERT INTO "words_kept" VALUES('4f4c8c5b70c459af7f8b4874202fb3f04539ecb499b83f88af1d07167709a83a','it''s \ 	',-1.0,7,0.1,'1.250','2024-02-29 12:30:00.125000','2024-02-29','12:30:00.125000',3600000005,X'00FF',1,'["x",null]','{"k":1}',NULL,NULL);
CREATE TABLE words_longest (
	_key VARCHAR(64) NOT NULL, 
	word TEXT, 
	line TEXT, 
	PRIMARY KEY (_key)
);
INSERT INTO "words_longest" VALUES('a8950f05d3443e7921e7ec6fbe06c8febe40966a5db58b15f767a995d561290b','b','y');
INSERT INTO "words_longest" VALUES('fd2079a3096d5abb9bdf54cc5c80262e7b58bac10d524846455474beff760be9','c','zz');
CREATE TABLE words_total (
	_key VARCHAR(64) NOT NULL, 
	x DOUBLE, 
	d TEXT, 
	trident_special TEXT, 
	PRIMARY KEY (_key)
);
INSERT INTO "words_total" VALUES('4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945',1.5,'2.125',NULL);
COMMIT;
