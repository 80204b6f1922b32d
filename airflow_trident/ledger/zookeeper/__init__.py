from airflow_trident._moved import names_in

__getattr__ = names_in(__name__)
