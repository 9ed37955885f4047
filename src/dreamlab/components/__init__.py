"""Parts that know what an action or an observation is: encoders, policies, critics."""
